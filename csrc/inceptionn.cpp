// inceptionn and inceptionn-scaled (docs/wire-format.md): a directory of chunk lengths, then each chunk's bursts of eight values.
// src/paceline/codecs/reference/inceptionn.py, inceptionn_scaled.py and bursts.py are the specification.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "bind.h"
#include "dispatch.h"
#include "pool.h"

namespace paceline {
namespace {

constexpr int kBurstMost = 34;  // bytes: a tag vector and eight whole values
constexpr size_t kBurstChunk = 16384, kBlock = 1024, kBlocks = kBurstChunk / kBlock;  // values, values, blocks of a chunk
constexpr int32_t kOne = 127 << 23, kMost = 0x7f7fffff;                              // bits of 1.0 and of the largest number
constexpr int kEmpty = -32768, kLeastExponent = -148, kMostExponent = 128;
constexpr size_t kRuns = 256;  // parts that a body is decoded in: their offsets fit on the stack

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

size_t chunks_of(size_t n) { return (n + kBurstChunk - 1) / kBurstChunk; }
size_t blocks_of(size_t n) { return (n + kBlock - 1) / kBlock; }

// One chunk of a format: its values, and where its blocks' exponents lie (inceptionn-scaled).
struct FaithfulFormat {
    static constexpr size_t kExponentBytes = 0;
    FaithfulParameters p;

    explicit FaithfulFormat(int k) : p(k) {}

    uint8_t* encode(const float* x, size_t n, uint8_t*, uint8_t* to, uint8_t* end) const {
        return PACELINE_CALL(encode_faithful)(p, x, n, to, end);
    }

    const uint8_t* decode(const uint8_t* from, const uint8_t* end, const uint8_t*, float* out, size_t n, int mode) const {
        return PACELINE_CALL(decode_faithful)(p, from, end, out, n, mode);
    }
};

struct ScaledFormat {
    static constexpr size_t kExponentBytes = 2;
    int k;

    explicit ScaledFormat(int k_) : k(k_) {}

    uint8_t* encode(const float* x, size_t n, uint8_t* exponents, uint8_t* to, uint8_t* end) const {
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

    const uint8_t* decode(const uint8_t* from, const uint8_t* end, const uint8_t* exponents, float* out, size_t n, int mode) const {
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
};

thread_local uint8_t t_chunk[kBurstChunk / 8 * kBurstMost + kBurstMost];

// Bytes written, or -1 where a value has no form or `body` is too small.
template <class Format>
int64_t encode(const Format& format, const float* x, size_t n, uint8_t* body, size_t room, int threads) {
    const size_t chunks = chunks_of(n), exponents = 4 * chunks, bursts = exponents + Format::kExponentBytes * blocks_of(n);
    if (room < bursts) return -1;
    uint8_t *at = body + bursts, *const end = body + room;
    const bool alone = threads < 2 || chunks < 2;
    std::atomic<size_t> turn{0};
    std::atomic<bool> good{true};
    // A chunk's place is known when all before it are done. A thread therefore writes to a buffer of its own and copies, out of
    // its cache, when its turn has come: chunks are handed out in order, so whoever is waited for is at work.
    parallel_for(chunks, threads, [&](size_t chunk) {
        const size_t first = chunk * kBurstChunk, size = std::min(kBurstChunk, n - first);
        uint8_t* const scales = body + exponents + Format::kExponentBytes * (first / kBlock);
        uint8_t* const to = alone ? at : t_chunk;
        uint8_t* const stop = !good.load(std::memory_order_relaxed)
                                  ? nullptr
                                  : format.encode(x + first, size, scales, to, alone ? end : t_chunk + sizeof t_chunk);
        for (int spins = 0; turn.load(std::memory_order_acquire) != chunk; spins++)
            if (spins > 64) std::this_thread::yield();
        uint8_t* const place = at;
        const size_t bytes = stop ? size_t(stop - to) : 0;
        const bool fits = stop && bytes <= size_t(end - place);
        if (!fits) good.store(false, std::memory_order_relaxed);
        if (fits) at = place + bytes;
        turn.store(chunk + 1, std::memory_order_release);
        if (!fits) return;
        const uint32_t length = uint32_t(bytes);
        std::memcpy(body + 4 * chunk, &length, 4);
        if (!alone) std::memcpy(place, to, bytes);
    });
    return good.load() ? at - body : -1;
}

template <class Format>
int decode(const Format& format, const uint8_t* body, size_t bytes, float* out, size_t n, int mode, int threads) {
    const size_t chunks = chunks_of(n), exponents = 4 * chunks, bursts = exponents + Format::kExponentBytes * blocks_of(n);
    if (bytes < bursts) return kWrongSize;
    const size_t runs = std::min(chunks, kRuns);
    const auto length = [&](size_t chunk) {
        uint32_t value;
        std::memcpy(&value, body + 4 * chunk, 4);
        return size_t(value);
    };
    size_t starts[kRuns], at = bursts;
    for (size_t run = 0; run < runs; run++) {
        starts[run] = at;
        for (size_t chunk = run * chunks / runs; chunk < (run + 1) * chunks / runs; chunk++) {
            if (length(chunk) > bytes - at) return kWrongSize;
            at += length(chunk);
        }
    }
    if (at != bytes) return kWrongSize;
    std::atomic<bool> good{true};
    parallel_for(runs, threads, [&](size_t run) {
        const uint8_t* from = body + starts[run];
        for (size_t chunk = run * chunks / runs; chunk < (run + 1) * chunks / runs; chunk++) {
            const size_t first = chunk * kBurstChunk, size = std::min(kBurstChunk, n - first);
            const uint8_t* const scales = body + exponents + Format::kExponentBytes * (first / kBlock);
            const uint8_t* const next = from + length(chunk);
            if (format.decode(from, body + bytes, scales, out + first, size, mode) != next)
                return good.store(false, std::memory_order_relaxed);
            from = next;
        }
    });
    return good.load() ? kFine : kIllegalCode;
}

template <class Format>
int64_t encode_array(ConstFloats x, Bytes body, int k, int threads) {
    return encode(Format(k), x.data(), x.size(), body.data(), body.size(), threads);
}

template <class Format>
int decode_array(ConstBytes body, Floats out, int k, int mode, int threads) {
    return decode(Format(k), body.data(), body.size(), out.data(), out.size(), mode, threads);
}

}  // namespace

void bind_inceptionn(nb::module_& m) {
    const auto release = nb::call_guard<nb::gil_scoped_release>();
    const auto x = nb::arg("x").noconvert(), body = nb::arg("body").noconvert(), out = nb::arg("out").noconvert();
    const char* const encodes = "Write the body of x with bound 2**-k; its bytes, or -1 for NaN and infinity where they have no form.";
    const char* const decodes = "Set out (mode 0), add to it (1) or subtract (2) what body holds; 0, or what is wrong with it.";
    m.def("inceptionn_encode", &encode_array<FaithfulFormat>, x, body, nb::arg("k"), nb::arg("threads"), release, encodes);
    m.def("inceptionn_decode", &decode_array<FaithfulFormat>, body, out, nb::arg("k"), nb::arg("mode"), nb::arg("threads"), release, decodes);
    m.def("inceptionn_scaled_encode", &encode_array<ScaledFormat>, x, body, nb::arg("k"), nb::arg("threads"), release, encodes);
    m.def("inceptionn_scaled_decode", &decode_array<ScaledFormat>, body, out, nb::arg("k"), nb::arg("mode"), nb::arg("threads"), release, decodes);
}

}  // namespace paceline
