// Passes over fp32 arrays: max |x|, moments, and the codecs fp32 and bf16.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "bind.h"
#include "counter.h"
#include "dispatch.h"
#include "pool.h"

namespace paceline {
namespace {

constexpr size_t kMomentsBlock = 4096;  // of the summation order: ternary.py has the same
constexpr uint32_t kBf16Nan = 0x7fc0;

struct BlockSums {
    double first, second;
    uint32_t top;
};

#define PACELINE_KERNELS "floats_kernels.h"
#include "foreach_isa.h"

void raise_to(std::atomic<uint32_t>& top, uint32_t value) {
    uint32_t seen = top.load(std::memory_order_relaxed);
    while (seen < value && !top.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

float as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

float peak(const ConstFloats& x, int threads) {
    const float* from = x.data();
    const size_t n = x.size();
    std::atomic<uint32_t> top{0};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads,
                    [&](size_t first, size_t last) { raise_to(top, PACELINE_CALL(peak_bits)(from + first, last - first)); });
    return as_float(top);
}

// The sum of `count` values in the order of ternary.py, which overwrites them.
double total(double* values, size_t count) {
    while (count > 1) {
        size_t blocks = 0;
        for (size_t i = 0; i < count; i += kMomentsBlock, blocks++) {
            double lanes[16] = {}, sum = 0;
            for (size_t k = i; k < std::min(i + kMomentsBlock, count); k++) lanes[k % 16] += values[k];
            for (const double lane : lanes) sum += lane;
            values[blocks] = sum;
        }
        count = blocks;
    }
    return count ? values[0] : 0.0;
}

std::tuple<float, double, double> moments(const ConstFloats& x, int threads) {
    thread_local std::vector<double> blocks;  // grows to the largest tensor, then stays
    const float* from = x.data();
    const size_t n = x.size(), count = (n + kMomentsBlock - 1) / kMomentsBlock;
    const double shift = n ? static_cast<double>(from[0]) : 0.0;
    if (blocks.size() < 2 * count) blocks.resize(2 * count);
    double *first = blocks.data(), *second = first + count;
    std::atomic<uint32_t> top{0};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t begin, size_t end) {
        uint32_t most = 0;
        for (size_t i = begin; i < end; i += kMomentsBlock) {
            const BlockSums sums = PACELINE_CALL(block_sums)(from + i, std::min(kMomentsBlock, n - i), shift);
            first[i / kMomentsBlock] = sums.first;
            second[i / kMomentsBlock] = sums.second;
            most = std::max(most, sums.top);
        }
        raise_to(top, most);
    });
    return {as_float(top), total(first, count), total(second, count)};
}

void same_size(size_t is, size_t should) {
    if (is != should) throw std::invalid_argument("the body has " + std::to_string(is) + " bytes, not " + std::to_string(should));
}

// One large piece a thread: from some size on memcpy writes past the caches, which pieces of a chunk would not reach.
void copy(uint8_t* to, const uint8_t* from, size_t bytes, int threads) {
    const size_t chunks = (bytes + 4 * kChunk - 1) / (4 * kChunk), pieces = std::min<size_t>(chunks, std::max(threads, 1));
    if (!pieces) return;
    const size_t piece = (chunks + pieces - 1) / pieces * 4 * kChunk;
    parallel_for(pieces, threads, [&](size_t i) {
        if (i * piece < bytes) std::memcpy(to + i * piece, from + i * piece, std::min(piece, bytes - i * piece));
    });
}

void fp32_encode(const ConstFloats& x, const Bytes& body, int threads) {
    same_size(body.size(), 4 * x.size());
    const float* from = x.data();
    uint8_t* to = body.data();
    const size_t n = x.size();
    nb::gil_scoped_release release;
    copy(to, reinterpret_cast<const uint8_t*>(from), 4 * n, threads);
}

int fp32_decode(const ConstBytes& body, const Floats& out, int mode, int threads) {
    const size_t n = out.size();
    if (body.size() != 4 * n) return kWrongSize;
    const uint8_t* from = body.data();
    float* to = out.data();
    nb::gil_scoped_release release;
    if (mode == kSet) {
        copy(reinterpret_cast<uint8_t*>(to), from, 4 * n, threads);
        return kFine;
    }
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (mode == kAdd)
            PACELINE_CALL(combine<kAdd>)(to + first, from + 4 * first, last - first);
        else
            PACELINE_CALL(combine<kSubtract>)(to + first, from + 4 * first, last - first);
    });
    return kFine;
}

void bf16_encode(const ConstFloats& x, const Bytes& body, int threads) {
    same_size(body.size(), 2 * x.size());
    const float* from = x.data();
    uint8_t* to = body.data();
    const size_t n = x.size();
    nb::gil_scoped_release release;
    parallel_ranges(n, threads,
                    [&](size_t first, size_t last) { PACELINE_CALL(bf16_encode)(from + first, to + 2 * first, last - first); });
}

void bf16_draw(const ConstFloats& x, const Words16& out, uint32_t low, uint32_t high, uint64_t start, int threads) {
    if (out.size() != x.size()) throw std::invalid_argument("as many words as values");
    const float* from = x.data();
    uint16_t* to = out.data();
    const size_t n = x.size();
    const Stream key{low, high};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        while (first < last) {  // up to where the upper half of the index changes
            const uint64_t index = start + first, left = (uint64_t{1} << 32) - (index & 0xffffffffu);
            const size_t run = last - first < left ? last - first : static_cast<size_t>(left);
            PACELINE_CALL(bf16_draw)(from + first, to + first, run, static_cast<uint32_t>(index), key.low, key.high_at(index));
            first += run;
        }
    });
}

int bf16_decode(const ConstBytes& body, const Floats& out, int mode, int threads) {
    const size_t n = out.size();
    if (body.size() != 2 * n) return kWrongSize;
    const uint8_t* from = body.data();
    float* to = out.data();
    const auto decode = mode == kSet   ? PACELINE_CALL(bf16_decode<kSet>)
                        : mode == kAdd ? PACELINE_CALL(bf16_decode<kAdd>)
                                       : PACELINE_CALL(bf16_decode<kSubtract>);
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) { decode(from + 2 * first, to + first, last - first); });
    return kFine;
}

}  // namespace

void bind_floats(nb::module_& m) {
    m.def("peak", &peak, nb::arg("x").noconvert(), nb::arg("threads"), "max |x|; infinity or NaN when x holds one; 0 for no element.");
    m.def("moments", &moments, nb::arg("x").noconvert(), nb::arg("threads"),
          "max |x|, and the fp64 sums of x - x[0] and of its square in the order of ternary.moments.");
    m.def("fp32_encode", &fp32_encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("threads"));
    m.def("fp32_decode", &fp32_decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("threads"));
    m.def("bf16_encode", &bf16_encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("threads"));
    m.def("bf16_draw", &bf16_draw, nb::arg("x").noconvert(), nb::arg("out").noconvert(), nb::arg("low"), nb::arg("high"), nb::arg("start"),
          nb::arg("threads"), "bfloat16 by stochastic rounding.");
    m.def("bf16_decode", &bf16_decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("threads"));
}

}  // namespace paceline
