// inceptionn and inceptionn-scaled (docs/wire-format.md): a directory of chunk lengths, then each chunk's bursts of eight values.
// src/paceline/codecs/reference/inceptionn.py, inceptionn_scaled.py and bursts.py are the specification.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "bind.h"
#include "inceptionn_chunk.h"
#include "pool.h"

namespace paceline {
namespace {

constexpr size_t kBurstChunk = 16384;  // values
constexpr size_t kRuns = 256;          // parts that a body is decoded in: their offsets fit on the stack

size_t chunks_of(size_t n) { return (n + kBurstChunk - 1) / kBurstChunk; }
size_t blocks_of(size_t n) { return (n + kBlock - 1) / kBlock; }

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
