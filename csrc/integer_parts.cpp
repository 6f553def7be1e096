// int8 and int4 between messages and the gradients of several tensors: no packed copy in between, sums of messages formed block
// by block on their way into the next one, means written where the gradients lie. The bytes and values are those of integer.cpp's
// kernels on a packed copy that is then divided.
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "counter.h"
#include "integer.h"
#include "pool.h"

namespace paceline {
namespace {

// Elements start to stop of a message, and where they are in memory.
struct SourcePart {
    const float* data;
    size_t start, stop;
};
struct TargetPart {
    float* data;
    size_t start, stop;
};

struct Coded {
    const uint8_t *scales, *codes;
};
struct Coding {
    uint8_t *scales, *codes;
};

#define PACELINE_KERNELS "integer_parts_kernels.h"
#include "foreach_isa.h"

template <class Part, class Arrays>
std::vector<Part> parts_of(const Arrays& arrays, size_t& n) {
    std::vector<Part> parts;
    for (const auto& array : arrays) {
        parts.push_back({array.data(), n, n + array.size()});
        n += array.size();
    }
    return parts;
}

// Scales and codes of bodies of n elements; kFine, or what is wrong with one of them.
template <int kLevels>
Status open(const std::vector<ConstBytes>& bodies, size_t n, size_t block, int threads, std::vector<Coded>& from) {
    const size_t at = scale_bytes(n, block), bytes = code_bytes(n, kLevels);
    for (const auto& body : bodies) {
        if (body.size() != at + bytes) return kWrongSize;
        from.push_back({body.data(), body.data() + at});
    }
    std::atomic<bool> illegal{false};
    nb::gil_scoped_release release;
    for (const Coded& m : from) {
        if (!legal_scales(m.scales, at)) return kBadScale;
        if (kLevels == 7 && n % 2 && m.codes[bytes - 1] >> 4) return kBadPadding;
    }
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (const Coded& m : from)
            if (PACELINE_CALL(integer_illegal<kLevels>)(m.codes + code_bytes(first, kLevels), code_bytes(last - first, kLevels)))
                illegal.store(true, std::memory_order_relaxed);
    });
    return illegal ? kIllegalCode : kFine;
}

template <int kLevels>
int encode(const std::vector<ConstFloats>& x, const std::vector<ConstBytes>& more, const Bytes& body, int log2, uint32_t low,
           uint32_t high, uint64_t start, int threads) {
    size_t n = 0;
    const auto parts = parts_of<SourcePart>(x, n);
    const size_t block = block_of(log2), at = scale_bytes(n, block);
    need_bytes(body.size(), at + code_bytes(n, kLevels));
    std::vector<Coded> from;
    if (const Status wrong = open<kLevels>(more, n, block, threads, from)) return wrong;
    const Coding to{body.data(), body.data() + at};
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        thread_local std::vector<float> room;  // grows to the largest block, then stays
        if (room.size() < block) room.resize(block);
        const uint32_t top = PACELINE_CALL(parts_encode<kLevels>)(parts.data(), from.data(), from.size(), first, last, block, to,
                                                                  Stream{low, high}, start, room.data());
        if (top >= kInfinityBits) finite.store(false, std::memory_order_relaxed);
    });
    return finite ? kFine : kBadValue;
}

template <int kLevels>
int decode(const std::vector<ConstBytes>& bodies, const std::vector<Floats>& out, int log2, float divisor, bool past, int threads) {
    if (bodies.empty()) throw std::invalid_argument("no message to decode");
    size_t n = 0;
    const auto parts = parts_of<TargetPart>(out, n);
    std::vector<Coded> from;
    // First, so that a refused body leaves the parts as they were.
    if (const Status wrong = open<kLevels>(bodies, n, block_of(log2), threads, from)) return wrong;
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        PACELINE_CALL(parts_decode<kLevels>)(from.data(), from.size(), parts.data(), first, last, log2, divisor, past);
    });
    return kFine;
}

template <int kLevels>
void bind(nb::module_& m, const char* encoder, const char* decoder) {
    m.def(encoder, &encode<kLevels>, nb::arg("x").noconvert(), nb::arg("more").noconvert(), nb::arg("body").noconvert(),
          nb::arg("log2_block"), nb::arg("low"), nb::arg("high"), nb::arg("start"), nb::arg("threads"),
          "Scales and codes of several tensors one after the other, plus the values of the bodies `more`; 0, or a status.");
    m.def(decoder, &decode<kLevels>, nb::arg("bodies").noconvert(), nb::arg("out").noconvert(), nb::arg("log2_block"),
          nb::arg("divisor"), nb::arg("past"), nb::arg("threads"),
          "The sum of bodies, divided, into several tensors, past the caches if so; 0, or a status and all unchanged.");
}

}  // namespace

void bind_integer_parts(nb::module_& m) {
    bind<127>(m, "int8_parts_encode", "int8_parts_decode");
    bind<7>(m, "int4_parts_encode", "int4_parts_decode");
}

}  // namespace paceline
