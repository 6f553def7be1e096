// LARS and LAMB over lists of fp32 tensors: a pass that only reads and adds up squares, and a pass that writes.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "bind.h"
#include "dispatch.h"
#include "pool.h"

namespace paceline {
namespace {

constexpr size_t kSquaresBlock = 512;  // elements whose squares are added up in fp32

struct LarsStep {
    float scale, decay, gain, momentum, rate;
};

struct LambStep {
    float scale, beta1, rest1, beta2, rest2, correct1, correct2, eps, decay, rate;
};

#define PACELINE_KERNELS "optimizers_kernels.h"
#include "foreach_isa.h"

using Addresses = std::vector<uintptr_t>;
using Sizes = std::vector<size_t>;
using Scalars = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct Unit {
    size_t tensor, first, count;
};

// Every tensor in ranges of up to kChunk elements, in order.
std::vector<Unit> units_of(const Sizes& sizes) {
    std::vector<Unit> units;
    for (size_t t = 0; t < sizes.size(); t++)
        for (size_t first = 0; first < sizes[t]; first += kChunk) units.push_back({t, first, std::min(kChunk, sizes[t] - first)});
    return units;
}

template <class T>
T* at(const Addresses& list, const Unit& unit) {
    return reinterpret_cast<T*>(list[unit.tensor]) + unit.first;
}

void same_length(size_t tensors, std::initializer_list<size_t> lengths) {
    for (const size_t length : lengths)
        if (length != tensors) throw std::invalid_argument("lists of different lengths");
}

// sum(unit, totals) gives kCount sums of one unit; a tensor's are those of its units in order, whatever the threads.
template <size_t kCount, class Sum>
void add_up(const Sizes& sizes, double* out, int threads, Sum&& sum) {
    const std::vector<Unit> units = units_of(sizes);
    std::vector<double> parts(kCount * units.size(), 0.0);
    parallel_team(units.size(), threads, [&](size_t i) { sum(units[i], parts.data() + kCount * i); });
    std::fill(out, out + kCount * sizes.size(), 0.0);
    for (size_t i = 0; i < units.size(); i++)
        for (size_t k = 0; k < kCount; k++) out[k * sizes.size() + units[i].tensor] += parts[kCount * i + k];
}

// From the last unit to the first: what pass 1 read last is still in the cache.
template <class Write>
void write_back(const Sizes& sizes, int threads, Write&& write) {
    const std::vector<Unit> units = units_of(sizes);
    parallel_team(units.size(), threads, [&](size_t i) { write(units[units.size() - 1 - i]); });
}

void squares_of(const Addresses& x, const Sizes& sizes, const nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out,
                int threads) {
    same_length(sizes.size(), {x.size(), out.shape(0)});
    double* to = out.data();
    nb::gil_scoped_release release;
    add_up<1>(sizes, to, threads,
              [&](const Unit& u, double* sums) { PACELINE_CALL(squares)(at<const float>(x, u), u.count, sums); });
}

void lars_sums_of(const Addresses& w, const Addresses& g, const Sizes& sizes, float scale, float decay, const Sums& out, int threads) {
    same_length(sizes.size(), {w.size(), g.size(), out.shape(1)});
    same_length(2, {out.shape(0)});
    double* to = out.data();
    const auto sum = decay == 0.0f ? PACELINE_CALL(lars_sums<false>) : PACELINE_CALL(lars_sums<true>);
    nb::gil_scoped_release release;
    add_up<2>(sizes, to, threads, [&](const Unit& u, double* sums) {
        sum(at<const float>(w, u), at<const float>(g, u), u.count, scale, decay, sums);
    });
}

void lars_step_of(const Addresses& w, const Addresses& g, const Addresses& v, const Sizes& sizes, const Scalars& gain, float rate,
                  float scale, float decay, float momentum, bool nesterov, int threads) {
    same_length(sizes.size(), {w.size(), g.size(), v.size(), gain.shape(0)});
    const float* gains = gain.data();
    const auto step = nesterov ? PACELINE_CALL(lars_step<true>) : PACELINE_CALL(lars_step<false>);
    nb::gil_scoped_release release;
    write_back(sizes, threads, [&](const Unit& u) {
        step(at<float>(w, u), at<const float>(g, u), at<float>(v, u), u.count, {scale, decay, gains[u.tensor], momentum, rate});
    });
}

// What both passes of LAMB get; the moments' corrections are one number a tensor.
struct Lamb {
    const Addresses &w, &g, &m, &v;
    const float *correct1, *correct2;
    LambStep shared;

    LambStep of(size_t tensor, float rate) const {
        LambStep s = shared;
        s.correct1 = correct1[tensor];
        s.correct2 = correct2[tensor];
        s.rate = rate;
        return s;
    }
};

Lamb lamb_of(const Addresses& w, const Addresses& g, const Addresses& m, const Addresses& v, const Sizes& sizes,
             const Scalars& correct1, const Scalars& correct2, double beta1, double beta2, float eps, float decay, float scale) {
    same_length(sizes.size(), {w.size(), g.size(), m.size(), v.size(), correct1.shape(0), correct2.shape(0)});
    const auto narrow = [](double x) { return static_cast<float>(x); };
    return {w, g, m, v, correct1.data(), correct2.data(),
            {scale, narrow(beta1), narrow(1 - beta1), narrow(beta2), narrow(1 - beta2), 1, 1, eps, decay, 0}};
}

void lamb_sums_of(const Addresses& w, const Addresses& g, const Addresses& m, const Addresses& v, const Sizes& sizes,
                  const Scalars& correct1, const Scalars& correct2, double beta1, double beta2, float eps, float decay, float scale,
                  const Sums& out, int threads) {
    const Lamb lamb = lamb_of(w, g, m, v, sizes, correct1, correct2, beta1, beta2, eps, decay, scale);
    same_length(sizes.size(), {out.shape(1)});
    same_length(3, {out.shape(0)});
    double* to = out.data();
    nb::gil_scoped_release release;
    add_up<3>(sizes, to, threads, [&](const Unit& u, double* sums) {
        PACELINE_CALL(lamb_sums)(at<const float>(w, u), at<const float>(g, u), at<const float>(m, u), at<const float>(v, u), u.count,
                                 lamb.of(u.tensor, 0), sums);
    });
}

void lamb_step_of(const Addresses& w, const Addresses& g, const Addresses& m, const Addresses& v, const Sizes& sizes,
                  const Scalars& correct1, const Scalars& correct2, double beta1, double beta2, float eps, float decay, float scale,
                  const Scalars& rate, int threads) {
    const Lamb lamb = lamb_of(w, g, m, v, sizes, correct1, correct2, beta1, beta2, eps, decay, scale);
    same_length(sizes.size(), {rate.shape(0)});
    const float* rates = rate.data();
    nb::gil_scoped_release release;
    write_back(sizes, threads, [&](const Unit& u) {
        PACELINE_CALL(lamb_step)(at<float>(w, u), at<const float>(g, u), at<float>(m, u), at<float>(v, u), u.count,
                                 lamb.of(u.tensor, rates[u.tensor]));
    });
}

}  // namespace

void bind_optimizers(nb::module_& m) {
    // Addresses of fp32 elements, which the caller keeps alive; sums are fp64, one row a sum, one column a tensor.
    m.def("squares", &squares_of, nb::arg("x"), nb::arg("sizes"), nb::arg("out").noconvert(), nb::arg("threads"));
    m.def("lars_sums", &lars_sums_of, nb::arg("w"), nb::arg("g"), nb::arg("sizes"), nb::arg("scale"), nb::arg("decay"),
          nb::arg("out").noconvert(), nb::arg("threads"), "Squares of w and of scale * g + decay * w; of g without decay.");
    m.def("lars_step", &lars_step_of, nb::arg("w"), nb::arg("g"), nb::arg("v"), nb::arg("sizes"), nb::arg("gain").noconvert(),
          nb::arg("rate"), nb::arg("scale"), nb::arg("decay"), nb::arg("momentum"), nb::arg("nesterov"), nb::arg("threads"));
    m.def("lamb_sums", &lamb_sums_of, nb::arg("w"), nb::arg("g"), nb::arg("m"), nb::arg("v"), nb::arg("sizes"),
          nb::arg("correct1").noconvert(), nb::arg("correct2").noconvert(), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
          nb::arg("decay"), nb::arg("scale"), nb::arg("out").noconvert(), nb::arg("threads"), "Squares of w, the update and g.");
    m.def("lamb_step", &lamb_step_of, nb::arg("w"), nb::arg("g"), nb::arg("m"), nb::arg("v"), nb::arg("sizes"),
          nb::arg("correct1").noconvert(), nb::arg("correct2").noconvert(), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
          nb::arg("decay"), nb::arg("scale"), nb::arg("rate").noconvert(), nb::arg("threads"));
}

}  // namespace paceline
