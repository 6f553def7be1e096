// bfloat16 with coded exponents, without loss (src/paceline/codecs/reference/bf16_coded.py is the specification). Blocks are coded
// into a thread's own memory first, for where they go depends on the lengths of those before.
#include <algorithm>
#include <memory>
#include <vector>

#include "blocks.h"
#include "pool.h"

namespace paceline {
namespace {

constexpr size_t kBlock = 1024, kHeader = 4;
constexpr unsigned kRaw = 8;

struct Coding {
    uint8_t base, width;
    uint16_t escapes;
};

#define PACELINE_KERNELS "bf16_coded_kernels.h"
#include "foreach_isa.h"

// Where a block's parts are: offsets of its codes and of its other exponents.
struct Place {
    size_t codes, others;
};

inline size_t planes_of(size_t count) { return (count + 7) / 8; }

int64_t encode(const ConstFloats& x_, const Bytes& body_, int threads) {
    const size_t n = x_.size(), blocks = (n + kBlock - 1) / kBlock, fixed = kHeader * blocks + n;
    if (body_.size() < fixed + kRaw * planes_of(n)) throw std::invalid_argument("the body has no room for the longest message");
    const float* x = x_.data();
    uint8_t* body = body_.data();
    thread_local std::vector<Coding> codings;
    thread_local std::vector<uint8_t> exponents;
    codings.resize(std::max(codings.size(), blocks));
    exponents.resize(std::max(exponents.size(), n));
    Coding* coding = codings.data();
    uint8_t* exponent = exponents.data();
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += kBlock) {
            const size_t count = std::min(kBlock, last - i);
            PACELINE_CALL(split_block)(x + i, count, body + kHeader * blocks + i, exponent + i);
            const Coding found = PACELINE_CALL(best_of)(exponent + i, count);
            coding[i / kBlock] = found;
            const uint8_t header[kHeader] = {found.base, found.width, static_cast<uint8_t>(found.escapes),
                                             static_cast<uint8_t>(found.escapes >> 8)};
            std::memcpy(body + i / kBlock * kHeader, header, kHeader);
        }
    });
    std::unique_ptr<Place[]> places(new Place[blocks + 1]);
    size_t codes = 0, others = 0;
    for (size_t b = 0; b < blocks; b++) {
        places[b] = {codes, others};
        codes += coding[b].width * planes_of(std::min(kBlock, n - b * kBlock));
        others += coding[b].escapes;
    }
    uint8_t* to = body + fixed;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += kBlock) {
            const Place& at = places[i / kBlock];
            PACELINE_CALL(write_codes)(exponent + i, std::min(kBlock, last - i), coding[i / kBlock], to + at.codes, to + codes + at.others);
        }
    });
    return static_cast<int64_t>(fixed + codes + others);
}

int decode(const ConstBytes& body_, const Floats& out_, int mode, int threads) {
    const size_t n = out_.size(), blocks = (n + kBlock - 1) / kBlock, fixed = kHeader * blocks + n, bytes = body_.size();
    if (bytes < fixed) return kWrongSize;
    const uint8_t* body = body_.data();
    float* out = out_.data();
    std::unique_ptr<Place[]> places(new Place[blocks + 1]);
    std::unique_ptr<Coding[]> coding(new Coding[blocks + 1]);
    nb::gil_scoped_release release;
    size_t codes = 0, others = 0;
    for (size_t b = 0; b < blocks; b++) {
        const uint8_t* header = body + kHeader * b;
        coding[b] = {header[0], header[1], static_cast<uint16_t>(header[2] | header[3] << 8)};
        if (coding[b].width > kRaw || ((coding[b].width == 0 || coding[b].width == kRaw) && coding[b].escapes)) return kWrongSize;
        places[b] = {codes, others};
        codes += coding[b].width * planes_of(std::min(kBlock, n - b * kBlock));
        others += coding[b].escapes;
    }
    if (fixed + codes + others != bytes) return kWrongSize;
    const uint8_t *signs = body + kHeader * blocks, *coded = body + fixed, *bare = coded + codes;
    std::atomic<bool> illegal{false};
    // First, so that a refused body leaves out as it was.
    thread_local std::vector<uint8_t> exponents;
    exponents.resize(std::max(exponents.size(), n));
    uint8_t* exponent = exponents.data();
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += kBlock) {
            const Place& at = places[i / kBlock];
            if (!PACELINE_CALL(read_codes)(coded + at.codes, bare + at.others, std::min(kBlock, last - i), coding[i / kBlock],
                                           exponent + i))
                illegal.store(true, std::memory_order_relaxed);
        }
    });
    if (illegal) return kIllegalCode;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += kBlock)
            PACELINE_CALL(join_block)(signs + i, exponent + i, std::min(kBlock, last - i), mode, out + i);
    });
    return kFine;
}

}  // namespace

void bind_bf16_coded(nb::module_& m) {
    m.def("bf16_coded_encode", &encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("threads"),
          "Writes into a body with room for the longest message. Returns its bytes.");
    m.def("bf16_coded_decode", &decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("mode"), nb::arg("threads"),
          "0, or a status that says what is wrong with the body; out is then unchanged.");
}

}  // namespace paceline
