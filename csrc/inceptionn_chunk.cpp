// The specification is src/paceline/codecs/reference/inceptionn.py, inceptionn_scaled.py and bursts.py.
#include "inceptionn_chunk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dispatch.h"

namespace paceline {
namespace {

constexpr int32_t kOne = 127 << 23, kMost = 0x7f7fffff;                              // bits of 1.0 and of the largest number
constexpr int kEmpty = -32768, kLeastExponent = -148, kMostExponent = 128;

// For four tags (one byte): how a shuffle of bytes moves lanes' payloads together, and back, the tags themselves, and the payloads' bytes.
struct Tables {
    uint8_t pack[256][16], unpack[256][16];
    int32_t tags[256][4];
    uint8_t bytes[256];
};

constexpr Tables make_tables() {
    Tables t{};
    for (int tags = 0; tags < 256; tags++) {
        int at = 0;
        for (int j = 0; j < 16; j++) t.pack[tags][j] = t.unpack[tags][j] = 0x80;  // zero
        for (int lane = 0; lane < 4; lane++) {
            const int tag = tags >> 2 * lane & 3;
            t.tags[tags][lane] = tag;
            for (int j = 4 - (0x4210 >> 4 * tag & 7); j < 4; j++, at++) {
                t.pack[tags][at] = uint8_t(4 * lane + j);
                t.unpack[tags][4 * lane + j] = uint8_t(at);
            }
        }
        t.bytes[tags] = uint8_t(at);
    }
    return t;
}

alignas(64) constexpr Tables kTables = make_tables();

struct FaithfulParameters {
    int k;
    int32_t byte_at, half_at;  // bits of the least magnitudes in one and in two bytes
    uint32_t half_scale = 0;

    explicit FaithfulParameters(int k_) : k(k_), byte_at((127 - k) << 23), half_at((127 - k + (k + 1) / 2) << 23) {}
};

// Products of two powers of two where one would leave fp32's range: lift * up = 2^(15 - e), unit * drop = 2^(e - k) on a lane.
struct ScaledParameters {
    bool wide;
    float lift, up, narrow, unit, half_unit, drop;
    int32_t least_half, most_byte;
    uint32_t half_scale;

    ScaledParameters(int k, int e) : wide(k > 6) {
        const int raised = std::min(15 - e, 100), dropped = std::min(e + 60, 0);
        lift = power(raised), up = power(15 - e - raised), narrow = power(k - 15);
        unit = power(e - k - 24 - dropped), half_unit = power(e - 31 - dropped), drop = power(dropped);
        least_half = wide ? 255 << (14 - k + 16) : 0;
        most_byte = (k > 6 ? 127 : 1 << k) << 24;
        half_scale = e - 1 >= -126 ? uint32_t(e - 1 + 127) << 23 : uint32_t(1) << (e - 1 + 149);
    }

    static float power(int e) {
        const uint32_t bits = uint32_t(e + 127) << 23;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }
};

#define PACELINE_KERNELS "inceptionn_kernels.h"
#include "foreach_isa.h"

}  // namespace

uint8_t* FaithfulFormat::encode(const float* x, size_t n, uint8_t*, uint8_t* to, uint8_t* end) const {
    return PACELINE_CALL(encode_faithful)(FaithfulParameters(k), x, n, to, end);
}

const uint8_t* FaithfulFormat::decode(const uint8_t* from, const uint8_t* end, const uint8_t*, float* out, size_t n, int mode) const {
    return PACELINE_CALL(decode_faithful)(FaithfulParameters(k), from, end, out, n, mode);
}

uint8_t* ScaledFormat::encode(const float* x, size_t n, uint8_t* exponents, uint8_t* to, uint8_t* end) const {
    for (size_t i = 0; i < n && to; i += kBlock, exponents += 2) {
        const size_t size = std::min(kBlock, n - i);
        const uint32_t peak = PACELINE_CALL(peak_bits)(x + i, size);
        if (peak >= 0x7f800000) return nullptr;
        // The power of two above: for 2^23 <= peak the exponent field, below it the place of the highest one.
        const int e = !peak ? kEmpty : peak >> 23 ? int(peak >> 23) - 126 : -117 - __builtin_clz(peak);
        const int16_t stored = int16_t(e);
        std::memcpy(exponents, &stored, 2);
        if (peak) to = PACELINE_CALL(encode_scaled)(ScaledParameters(k, e), x + i, size, to, end);
    }
    return to;
}

const uint8_t* ScaledFormat::decode(const uint8_t* from, const uint8_t* end, const uint8_t* exponents, float* out, size_t n, int mode) const {
    for (size_t i = 0; i < n && from; i += kBlock, exponents += 2) {
        const size_t size = std::min(kBlock, n - i);
        int16_t e;
        std::memcpy(&e, exponents, 2);
        if (e == kEmpty) {
            for (size_t j = i; j < i + size; j++) out[j] = mode == 0 ? 0.0f : mode == 1 ? out[j] + 0.0f : out[j] - 0.0f;
            continue;
        }
        if (e < kLeastExponent || e > kMostExponent) return nullptr;
        from = PACELINE_CALL(decode_scaled)(ScaledParameters(k, e), from, end, out + i, size, mode);
    }
    return from;
}

}  // namespace paceline
