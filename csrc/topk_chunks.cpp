// The largest elements of every chunk, with values of 2, 16 or 32 bits (src/paceline/codecs/reference/topk.py and
// two_bit_values.py are the specification). Chunks are selected one by one, in a core's cache.
#include <functional>
#include <vector>

#include "means.h"
#include "pool.h"
#include "topk.h"

namespace paceline {
namespace {

constexpr uint32_t kLowestCounted = 1u << 20;  // of a threshold's bits: below, few elements are left, which are ordered

// Of `found` elements in order leaves the `kept` largest; of equal ones the first.
void keep_largest(size_t found, size_t kept, uint32_t* index, uint32_t* words, uint32_t* room) {
    for (size_t j = 0; j < found; j++) room[j] = words[j] & kMagnitude;
    std::nth_element(room, room + (kept - 1), room + found, std::greater<uint32_t>());
    const uint32_t least = room[kept - 1];
    size_t ties = kept, to = 0;
    for (size_t j = 0; j < found; j++) ties -= (words[j] & kMagnitude) > least;
    for (size_t j = 0; j < found; j++) {
        const uint32_t magnitude = words[j] & kMagnitude;
        if (magnitude < least || (magnitude == least && !ties)) continue;
        ties -= magnitude == least;
        index[to] = index[j], words[to++] = words[j];
    }
}

#define PACELINE_KERNELS "topk_chunks_kernels.h"
#include "foreach_isa.h"

size_t share_of(size_t count, size_t parts) { return (count * parts + 999999) / 1000000; }

// Adds bits to a byte that another thread may write too.
inline void add_bits(uint8_t* to, unsigned bits) {
    if (bits) __atomic_fetch_or(to, static_cast<uint8_t>(bits), __ATOMIC_RELAXED);
}

// Two levels of a chunk's values and, two bits each, their codes.
void write_two_bits(const uint32_t* words, size_t count, uint8_t* levels, uint8_t* codes, size_t rank) {
    uint32_t peak = 0;
    for (size_t j = 0; j < count; j++) peak = std::max(peak, words[j] & kMagnitude);
    const Mean mean(peak);
    uint64_t total = 0, above = 0, many = 0;
    for (size_t j = 0; j < count; j++) total += mean.whole(words[j] & kMagnitude);
    for (size_t j = 0; j < count; j++) {
        const uint64_t whole = mean.whole(words[j] & kMagnitude);
        const bool high = whole * count >= total;
        above += high ? whole : 0, many += high;
        add_bits(codes + (rank + j) / 4, (words[j] >> 31 << 1 | high) << (rank + j) % 4 * 2);
    }
    const float means[2] = {mean.of(total - above, std::max<size_t>(count - many, 1)), mean.of(above, many)};
    for (size_t level = 0; level < 2; level++) {
        const uint16_t half = bf16_of(bits_of(means[level]));
        std::memcpy(levels + 2 * level, &half, 2);
    }
}

int encode(const ConstFloats& x_, const Bytes& body_, size_t parts, size_t chunk, int low_bits, int value_bits, int threads) {
    const size_t n = x_.size(), chunks = (n + chunk - 1) / chunk, each = share_of(chunk, parts);
    const size_t kept = n / chunk * each + share_of(n % chunk, parts);
    const Layout at = layout_of(n, kept, low_bits, value_bits, chunks);
    need_bytes(body_.size(), at.total);
    const float* x = x_.data();
    uint8_t *body = body_.data(), *values = body + at.marks, *low = values + at.values;
    uint8_t* codes = values + 4 * chunks;
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    std::memset(body, 0, at.marks);
    if (value_bits == 2) std::memset(codes, 0, at.values - 4 * chunks);
    const size_t together = std::max<size_t>(1, kChunk / chunk), tasks = (chunks + together - 1) / together;
    parallel_for(tasks, threads, [&](size_t task) {
        thread_local std::vector<uint32_t> scratch;  // grows to the largest chunk and stays
        if (scratch.size() < 3 * chunk) scratch.resize(3 * chunk);
        uint32_t *index = scratch.data(), *words = index + chunk, *room = words + chunk;
        for (size_t c = task * together; c < std::min(chunks, (task + 1) * together); c++) {
            const size_t first = c * chunk, size = std::min(chunk, n - first), rank = c * each;
            const size_t count = size == chunk ? each : kept - rank;
            if (!PACELINE_CALL(largest_of)(x + first, size, count, index, words, room)) {
                finite.store(false, std::memory_order_relaxed);
                return;
            }
            size_t byte = 0;
            unsigned pending = 0;
            for (size_t j = 0; j < count; j++) {
                const size_t where = first + index[j], place = at.low_bits ? rank + j + (where >> at.low_bits) : where;
                if (place / 8 != byte) {
                    add_bits(body + byte, pending);
                    byte = place / 8, pending = 0;
                }
                pending |= 1u << place % 8;
                if (at.low_bits == 8) {
                    low[rank + j] = static_cast<uint8_t>(where);
                } else if (at.low_bits) {
                    const uint16_t part = static_cast<uint16_t>(where);
                    std::memcpy(low + 2 * (rank + j), &part, 2);
                }
            }
            add_bits(body + byte, pending);
            if (value_bits == 32) {
                std::memcpy(values + 4 * rank, words, 4 * count);
            } else if (value_bits == 16) {
                for (size_t j = 0; j < count; j++) {
                    const uint16_t half = bf16_of(words[j]);
                    std::memcpy(values + 2 * (rank + j), &half, 2);
                }
            } else {
                write_two_bits(words, count, values + 4 * c, codes, rank);
            }
        }
    });
    return finite ? kFine : kBadValue;
}

// The bits of value j.
inline uint32_t value_at(const uint8_t* values, const uint8_t* codes, size_t j, size_t each, int value_bits) {
    uint32_t bits = 0;
    if (value_bits == 32) {
        std::memcpy(&bits, values + 4 * j, 4);
        return bits;
    }
    uint16_t half;
    if (value_bits == 16) {
        std::memcpy(&half, values + 2 * j, 2);
        return static_cast<uint32_t>(half) << 16;
    }
    const unsigned code = codes[j / 4] >> j % 4 * 2 & 3u;
    std::memcpy(&half, values + 4 * (j / each) + 2 * (code & 1u), 2);
    return static_cast<uint32_t>(half) << 16 | (code >> 1) << 31;
}

int decode(const ConstBytes& body_, const Floats& out_, size_t parts, size_t chunk, int low_bits, int value_bits, int mode,
           int threads) {
    const size_t n = out_.size(), chunks = (n + chunk - 1) / chunk, each = share_of(chunk, parts);
    const size_t kept = n / chunk * each + share_of(n % chunk, parts);
    const Layout at = layout_of(n, kept, low_bits, value_bits, chunks);
    if (body_.size() != at.total) return kWrongSize;
    const uint8_t *body = body_.data(), *values = body + at.marks, *codes = values + 4 * chunks;
    float* out = out_.data();
    nb::gil_scoped_release release;
    if (const int bad = refusal(body, at, n, value_bits)) return bad;
    bool elsewhere = false;
    each_sent(body, at, [&](size_t j, size_t index) { elsewhere |= index / chunk != j / each; });
    if (elsewhere) return kBadIndex;
    if (value_bits == 2) {
        for (size_t c = 0; c < chunks; c++) {
            uint16_t levels[2];
            std::memcpy(levels, values + 4 * c, 4);
            if (levels[0] > levels[1] || levels[1] > 0x7f7f) return kBadScale;
        }
        if (kept % 4 && codes[kept / 4] >> kept % 4 * 2) return kBadPadding;
    }
    if (mode == kSet)
        parallel_ranges(n, threads, [&](size_t first, size_t last) { std::memset(out + first, 0, 4 * (last - first)); });
    each_sent(body, at, [=](size_t j, size_t index) {
        float before, value = float_of(value_at(values, codes, j, each, value_bits));
        std::memcpy(&before, out + index, 4);
        if (mode != kSet) value = mode == kAdd ? before + value : before - value;
        std::memcpy(out + index, &value, 4);
    });
    return kFine;
}

}  // namespace

void bind_topk_chunks(nb::module_& m) {
    m.def("topk_chunks_encode", &encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("parts"), nb::arg("chunk"),
          nb::arg("low_bits"), nb::arg("value_bits"), nb::arg("threads"), "The body; not 0 when x has NaN or infinity.");
    m.def("topk_chunks_decode", &decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("parts"), nb::arg("chunk"),
          nb::arg("low_bits"), nb::arg("value_bits"), nb::arg("mode"), nb::arg("threads"),
          "0, or a status that says what is wrong with the body; out is then unchanged.");
}

}  // namespace paceline
