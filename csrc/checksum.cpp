// The checksum of a payload (docs/wire-format.md): two sums over its 32-bit words, whose parts add up in any order.
#include <atomic>
#include <stdexcept>
#include <utility>

#include "bind.h"
#include "dispatch.h"
#include "pool.h"

namespace paceline {
namespace {

struct Sums {
    uint32_t s1, s2;
};

#define PACELINE_KERNELS "checksum_kernels.h"
#include "foreach_isa.h"

constexpr size_t kHeaderWords = 6;

std::pair<uint32_t, uint32_t> checksum(const ConstBytes& header, const ConstBytes& body, int threads) {
    if (header.size() != 4 * kHeaderWords) throw std::invalid_argument("the checksummed part of a header has 24 bytes");
    const uint8_t *head = header.data(), *data = body.data();
    const size_t size = body.size(), words = size / 4;
    nb::gil_scoped_release release;
    const Sums first = PACELINE_CALL(sums_of)(head, kHeaderWords);
    std::atomic<uint32_t> s1{first.s1}, s2{first.s2};
    const auto add = [&](Sums part, size_t before) {  // the part's words come after `before` others
        s1.fetch_add(part.s1, std::memory_order_relaxed);
        s2.fetch_add(part.s2 + static_cast<uint32_t>(before) * part.s1, std::memory_order_relaxed);
    };
    parallel_ranges(words, threads, [&](size_t begin, size_t end) {
        add(PACELINE_CALL(sums_of)(data + 4 * begin, end - begin), kHeaderWords + begin);
    });
    if (size % 4) {
        uint8_t last[4] = {};
        std::memcpy(last, data + 4 * words, size % 4);
        add(baseline::sums_of(last, 1), kHeaderWords + words);
    }
    return {s1.load(), s2.load()};
}

}  // namespace

void bind_checksum(nb::module_& m) {
    m.def("checksum", &checksum, nb::arg("header").noconvert(), nb::arg("body").noconvert(), nb::arg("threads") = 1,
          "(s1, s2) over 24 header bytes and then the body, zero-padded to whole 32-bit words.");
}

}  // namespace paceline
