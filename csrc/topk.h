// Where and how topk's elements are in a body (src/paceline/codecs/reference/topk.py is the specification).
#pragma once

#include <algorithm>
#include <type_traits>

#include "blocks.h"

namespace paceline {

constexpr uint32_t kMagnitude = 0x7fffffffu;

// By bytes: neither x nor out needs to lie at a multiple of four.
inline uint32_t bits_at(const float* x, size_t i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    return bits;
}

inline uint32_t magnitude_at(const float* x, size_t i) { return bits_at(x, i) & kMagnitude; }

// Where the parts of a body are: topk.py's Layout.
struct Layout {
    size_t kept, low_bits, mark_bits, marks, values, total;
};

// `chunks` is the number of chunks where values take two bits.
inline Layout layout_of(size_t n, size_t kept, int low_bits, int value_bits, size_t chunks = 0) {
    if (kept > n || (n && !kept)) throw std::invalid_argument("topk sends 1 to n of n elements");
    if ((value_bits != 2 && value_bits != 16 && value_bits != 32) || (low_bits != 0 && low_bits != 8 && low_bits != 16))
        throw std::invalid_argument("topk has values of 2, 16 or 32 bits and 0, 8 or 16 low bits");
    Layout at{};
    at.kept = kept;
    at.low_bits = static_cast<size_t>(low_bits);
    at.mark_bits = low_bits ? kept + ((n ? n - 1 : 0) >> low_bits) : n;
    at.marks = (at.mark_bits + 63) / 64 * 8;
    at.values = value_bits == 2 ? 4 * chunks + (kept + 3) / 4 : kept * static_cast<size_t>(value_bits) / 8;
    at.total = at.marks + at.values + kept * at.low_bits / 8;
    return at;
}

inline uint16_t bf16_of(uint32_t bits) {
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t rounded = (magnitude + 0x7fffu + (magnitude >> 16 & 1u)) >> 16;
    return static_cast<uint16_t>((bits >> 16 & 0x8000u) | std::min(rounded, 0x7f7fu));
}

// Calls f(j, index) for every element sent, in order. Needs marks that hold no more than `kept` ones.
template <class Low, class F>
void each_low(const uint8_t* body, const Layout& at, F&& f) {
    const uint8_t* low = body + at.marks + at.values;
    size_t j = 0;
    for (size_t w = 0; w < at.marks / 8; w++) {
        uint64_t word;
        std::memcpy(&word, body + 8 * w, 8);
        for (; word; word &= word - 1, j++) {
            const size_t place = 64 * w + static_cast<size_t>(__builtin_ctzll(word));
            if constexpr (std::is_void_v<Low>) {
                f(j, place);
            } else {
                Low part;
                std::memcpy(&part, low + j * sizeof part, sizeof part);
                f(j, (place - j) << 8 * sizeof part | part);
            }
        }
    }
}

template <class F>
void each_sent(const uint8_t* body, const Layout& at, F&& f) {
    if (at.low_bits == 16)
        each_low<uint16_t>(body, at, f);
    else if (at.low_bits == 8)
        each_low<uint8_t>(body, at, f);
    else
        each_low<void>(body, at, f);
}

// What is wrong with the marks, the indices, and values of 16 or 32 bits.
inline int refusal(const uint8_t* body, const Layout& at, size_t n, int value_bits) {
    size_t ones = 0;
    uint64_t word = 0;
    for (size_t w = 0; w < at.marks / 8; w++) {
        std::memcpy(&word, body + 8 * w, 8);
        ones += static_cast<size_t>(__builtin_popcountll(word));
    }
    if (ones != at.kept || (at.mark_bits % 64 && word >> at.mark_bits % 64)) return kBadMarks;
    bool bad = false;
    const uint8_t* values = body + at.marks;
    for (size_t j = 0; value_bits != 2 && j < at.kept; j++) {
        uint32_t bits = 0;
        if (value_bits == 32)
            std::memcpy(&bits, values + 4 * j, 4);
        else
            std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, values + 2 * j, 2);
        bad |= (bits & kMagnitude) >= kInfinityBits;
    }
    if (bad) return kBadValue;
    if (!at.low_bits) return 0;
    size_t next = 0;
    each_sent(body, at, [&](size_t, size_t index) {
        bad |= index < next || index >= n;
        next = index + 1;
    });
    return bad ? kBadIndex : 0;
}

}  // namespace paceline
