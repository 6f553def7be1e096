// fp8: one block at a time, within it 64 elements at a time (fp8.py has the arithmetic).
#include "integer_kernels.h"

PACELINE_INLINE void fp8_group(const float* x, U32 index, U32 low, const U32* high, F32 inverse, F32 top, uint8_t* to) {
    store_codes<127>(to, [&](size_t r) __attribute__((always_inline)) {
        const F32 v = load<F32>(x + r * kLanes);
        const F32 scaled = at_most(abs(v) * inverse, top);
        const U32 draw = draw24(index + static_cast<uint32_t>(r * kLanes), low, high[r]) >> 4;
        const U32 normal = (((U32)scaled + draw) >> 20) - (120u << 3);
        const U32 whole = (U32)__builtin_convertvector(at_most(scaled, splat(0x1p-6f)) * 0x1p29f, I32);
        const U32 small = (U32)(scaled < 0x1p-6f);
        const U32 code = (((whole + draw) >> 20) & small) | (normal & ~small);
        return (I32)(((U32)v & 0x80000000u) | code << 24) >> 24;
    });
}

// One block: its scale to `scale`, its codes to `to`. Returns the bits of its largest magnitude; from infinity's up there are no codes.
inline uint32_t fp8_encode_block(const float* x, size_t n, uint8_t* scale, uint8_t* to, const Stream& key, uint64_t start) {
    const uint32_t peak = block_peak(x, n);
    if (peak >= kInfinityBits) return peak;
    const uint32_t field = fp8_field(peak), word = field << 23;
    std::memcpy(scale, &word, 4);
    const F32 inverse = splat(float_of((254 - field) << 23)), top = splat(field == kFp8LargestField ? 240.0f : 448.0f);
    encode_groups<127>(x, n, to, key, start,
                       [&](const float* from, U32 index, U32 low, const U32* high, uint8_t* out) __attribute__((always_inline)) {
                           fp8_group(from, index, low, high, inverse, top, out);
                       });
    return peak;
}

PACELINE_INLINE void fp8_values(const uint8_t* from, F32 scale, F32* values) {
    I32 codes[kRegisters];
    load_codes<127>(from, codes);
    for (size_t r = 0; r < kRegisters; r++) {
        const I32 magnitude = codes[r] & 0x7f;
        const U32 small = (U32)(magnitude < 8);
        const U32 subnormal = (U32)(__builtin_convertvector(magnitude, F32) * 0x1p-9f);
        const U32 normal = ((U32)magnitude << 20) + (120u << 23);
        const U32 bits = (subnormal & small) | (normal & ~small) | ((U32)codes[r] & 0x80000000u);
        values[r] = (F32)bits * scale;
    }
}

// Whether a code of NaN is among these, or a value beyond fp32: a magnitude above `most`.
inline bool fp8_illegal(const uint8_t* codes, size_t n, uint8_t most) {
    uint8_t top = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t magnitude = codes[i] & 0x7f;
        top = magnitude > top ? magnitude : top;
    }
    return top > most;
}

template <int kMode>
inline void fp8_decode_block(float scale_, const uint8_t* codes, float* out, size_t n) {
    const F32 scale = splat(scale_);
    F32 values[kRegisters];
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        fp8_values(codes + i, scale, values);
        put_block<kMode>(out + i, values);
    }
    if (i < n) {
        uint8_t rest[64] = {};
        std::memcpy(rest, codes + i, n - i);
        fp8_values(rest, scale, values);
        put_rest<kMode>(out + i, values, n - i);
    }
}
