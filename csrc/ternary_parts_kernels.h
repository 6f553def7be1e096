// TernGrad's codes of several tensors, whose borders lie anywhere in a block. A message's elements are its parts', in order.
#include "ternary_kernels.h"

// Elements first to last of a message, from which bodies begin at `body`. Returns the bits of the largest |x|.
inline uint32_t parts_encode(const EncodedPart* part, size_t first, size_t last, uint8_t* body, const Stream& key, uint64_t start) {
    uint32_t most = 0;
    while (part->stop <= first) part++;
    for (size_t i = first; i < last;) {
        const size_t end = part->stop < last ? part->stop : last;
        if (const size_t run = (end - i) / 64 * 64) {
            uint8_t* to = body + i / 4;
            const uint32_t top = ternary_blocks(
                part->data + (i - part->start), run, key, start + i, TwoScales{splat(part->bound), splat(part->factor)},
                [=](size_t k, Words words) __attribute__((always_inline)) { std::memcpy(to + k / 4, &words, 16); }, [](size_t, Words) {});
            most = top > most ? top : most;
            i += run;
        } else {  // a block of several parts, or the last one
            float block[64] = {};
            const size_t count = last - i < 64 ? last - i : 64, bytes = (count + 7) / 8;
            for (size_t k = 0; k < count; k++) {
                while (part->stop <= i + k) part++;
                const float x = part->data[i + k - part->start], magnitude = __builtin_fabsf(x);
                uint32_t bits;
                std::memcpy(&bits, &magnitude, 4);
                most = bits > most ? bits : most;
                block[k] = __builtin_copysignf((magnitude < part->bound ? magnitude : part->bound) * part->factor, x);
            }
            U32 top = {};
            const Words words = ternary_block(block, start + i, key, OneScale{splat(__builtin_inff()), splat(0x1p24f)}, top);
            std::memcpy(body + i / 4, &words.nonzero, bytes);
            std::memcpy(body + i / 4 + bytes, &words.negative, bytes);
            i += count;
        }
        while (i < last && part->stop <= i) part++;
    }
    return most;
}

// Puts sums of workers, times each part's scale, into the parts, past the caches where `past` says so.
inline void parts_decode(const uint8_t* body, const DecodedPart* part, size_t first, size_t last, int workers, int width, bool past) {
    while (part->stop <= first) part++;
    for (size_t i = first; i < last;) {
        const size_t end = part->stop < last ? part->stop : last;
        if (const size_t run = (end - i) / 64 * 64) {
            float* to = part->data + (i - part->start);
            const auto decode = past && streamable(to) ? sum_decode<kStream> : sum_decode<kSet>;
            decode(body + i / 8 * width, to, run, workers, width, part->scale);
            i += run;
        } else {
            float block[64];
            const size_t count = last - i < 64 ? last - i : 64;
            sum_decode<kSet>(body + i / 8 * width, block, count, workers, width, 1.0f);
            for (size_t k = 0; k < count; k++) {
                while (part->stop <= i + k) part++;
                part->data[i + k - part->start] = block[k] * part->scale;
            }
            i += count;
        }
        while (i < last && part->stop <= i) part++;
    }
    if (past) flush_stores();
}

// The exact sum of messages, in bit planes from end to end. What a ternary adds is its code + 1, so that offsets add up too.
// kWidth is the width where it is known, so that the planes stay in registers, else 0.
template <int kWidth>
inline void planes_sum_width(const Summand* from, size_t messages, uint8_t* body, size_t first, size_t last, int width_) {
    const int width = kWidth ? kWidth : width_;
    for (size_t i = first; i < last; i += 64) {
        const size_t count = last - i < 64 ? last - i : 64, bytes = (count + 7) / 8;
        const uint64_t mask = count < 64 ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
        uint64_t planes[kWidth ? kWidth : 16] = {};
        for (size_t m = 0; m < messages; m++) {
            const uint8_t* at = from[m].body + i / 8 * static_cast<size_t>(from[m].width);
            uint64_t carry = 0;
            const auto add = [&](int k, uint64_t bits) __attribute__((always_inline)) {
                const uint64_t either = planes[k] ^ bits, both = planes[k] & bits;
                planes[k] = either ^ carry;
                carry = both | (either & carry);
            };
            if (from[m].workers == 0) {
                const uint64_t nonzero = load_word(at, bytes), negative = load_word(at + bytes, bytes);
                add(0, ~nonzero & mask);
                add(1, nonzero & ~negative);
                for (int k = 2; k < width; k++) add(k, 0);
            } else {
                for (int k = 0; k < width; k++)
                    add(k, k < from[m].width ? load_word(at + static_cast<size_t>(k) * bytes, bytes) : 0);
            }
        }
        uint8_t* to = body + i / 8 * static_cast<size_t>(width);
        for (int k = 0; k < width; k++) store_word(to + static_cast<size_t>(k) * bytes, planes[k], bytes);
    }
}

inline void planes_sum(const Summand* from, size_t messages, uint8_t* body, size_t first, size_t last, int width) {
    switch (width) {
        case 2: return planes_sum_width<2>(from, messages, body, first, last, width);
        case 3: return planes_sum_width<3>(from, messages, body, first, last, width);
        case 4: return planes_sum_width<4>(from, messages, body, first, last, width);
        case 5: return planes_sum_width<5>(from, messages, body, first, last, width);
        default: return planes_sum_width<0>(from, messages, body, first, last, width);
    }
}
