// int8 and int4 of several tensors, whose borders lie anywhere in a block. A message's elements are its parts', in order.
#include "integer_kernels.h"

// Elements first to last of a message in one piece: where they lie, or else copied into `room`. Moves `part` on to the first.
inline const float* in_one_piece(const SourcePart*& part, size_t first, size_t last, float* room) {
    while (part->stop <= first) part++;
    if (last <= part->stop) return part->data + (first - part->start);
    const SourcePart* from = part;
    for (size_t i = first; i < last; from++) {
        const size_t end = from->stop < last ? from->stop : last;
        if (i < end) std::memcpy(room + (i - first), from->data + (i - from->start), 4 * (end - i));
        i = end;
    }
    return room;
}

// Elements first to last of a message, from a multiple of the block on: those of the parts, plus the messages' one after the
// other. `room` is for a block. Returns the bits of the largest magnitude that was encoded.
template <int kLevels>
inline uint32_t parts_encode(const SourcePart* part, const Coded* more, size_t messages, size_t first, size_t last, size_t block,
                             const Coding& to, const Stream& key, uint64_t start, float* room) {
    uint32_t most = 0;
    for (size_t i = first; i < last; i += block) {
        const size_t count = last - i < block ? last - i : block, scale = i / block * 4, code = i / 64 * group_bytes(kLevels);
        const float* x = in_one_piece(part, i, i + count, room);
        if (messages && x != room) std::memcpy(room, x, 4 * count), x = room;
        for (size_t m = 0; m < messages; m++)
            integer_decode<kLevels, kAdd>(more[m].scales + scale, more[m].codes + code, block, room, count);
        const uint32_t peak = encode_block<kLevels>(x, count, to.scales + scale, to.codes + code, key, start + i);
        most = peak > most ? peak : most;
    }
    return most;
}

// What a sum is divided by. The inverse of a power of two is exact, and a product by it the quotient.
struct Divisor {
    F32 divisor, inverse;
    bool exact;
    explicit Divisor(float d) : divisor(splat(d)), inverse(splat(1.0f / d)), exact(!(bits_of(d) & 0x7fffffu)) {}
    PACELINE_INLINE F32 operator()(F32 sum) const { return exact ? sum * inverse : sum / divisor; }
};

// 64 elements from i on of the sum of messages, divided.
template <int kLevels>
PACELINE_INLINE void mean_values(const Coded* from, size_t messages, size_t i, int log2, size_t count, const Divisor& mean, F32* values) {
    F32 more[kRegisters];
    for (size_t m = 0; m < messages; m++) {
        const uint8_t* codes = from[m].codes + i / 64 * group_bytes(kLevels);
        uint8_t rest[64] = {};
        if (count < 64) std::memcpy(rest, codes, code_bytes(count, kLevels)), codes = rest;
        const F32 scale = splat(load<float>(from[m].scales + (i >> log2) * 4));
        load_values<kLevels>(codes, scale, m ? more : values);
        for (size_t r = 0; m && r < kRegisters; r++) values[r] += more[r];
    }
    for (size_t r = 0; r < kRegisters; r++) values[r] = mean(values[r]);
}

template <int kLevels, int kMode>
PACELINE_INLINE void mean_run(const Coded* from, size_t messages, size_t i, int log2, const Divisor& mean, float* to,
                              size_t run) {
    F32 values[kRegisters];
    for (size_t k = 0; k < run; k += 64) {
        mean_values<kLevels>(from, messages, i + k, log2, 64, mean, values);
        put_block<kMode>(to + k, values);
    }
}

// Puts the sum of messages, divided, into the parts, past the caches where `past` says so.
template <int kLevels>
inline void parts_decode(const Coded* from, size_t messages, const TargetPart* part, size_t first, size_t last, int log2,
                         float divisor, bool past) {
    const Divisor mean(divisor);
    while (part->stop <= first) part++;
    for (size_t i = first; i < last;) {
        const size_t end = part->stop < last ? part->stop : last;
        if (const size_t run = (end - i) / 64 * 64) {
            float* to = part->data + (i - part->start);
            if (past && streamable(to))
                mean_run<kLevels, kStream>(from, messages, i, log2, mean, to, run);
            else
                mean_run<kLevels, kSet>(from, messages, i, log2, mean, to, run);
            i += run;
        } else {  // a group of several parts, or the last one
            F32 values[kRegisters];
            float group[64];
            const size_t count = last - i < 64 ? last - i : 64;
            mean_values<kLevels>(from, messages, i, log2, count, mean, values);
            put_block<kSet>(group, values);
            for (size_t k = 0; k < count; k++) {
                while (part->stop <= i + k) part++;
                part->data[i + k - part->start] = group[k];
            }
            i += count;
        }
        while (i < last && part->stop <= i) part++;
    }
    if (past) flush_stores();
}
