#include "sparse_convolution.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "dispatch.h"

namespace paceline {
namespace {

constexpr size_t kMostTile = 8;            // registers of sums
constexpr size_t kNearBytes = 24 << 10;    // of a block of channels, so that it stays in the first cache while all outputs use it
constexpr size_t kBandBytes = 512 << 10;   // of a lowered band, so that it stays in the second
constexpr size_t kLeastWeights = 8;        // of a row in a block: shorter loops cost more than what the first cache gains

// Kernel rows whose inputs are a multiple of the stride apart.
struct Phase {
    size_t number, base, reach;  // its first row in a plane; rows that it needs beyond the output's
};

// Columns first to first + columns - 1 of the output; a row of theirs takes `pitch` elements.
struct Strip {
    size_t first, columns, pitch;
    const uint32_t* offsets;
};

struct Tile {
    size_t block, row, rows;
    const float* in;
};

size_t up(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

// The weights for inputs of one size on one instruction set, in the order in which a unit uses them.
struct SparseBaked {
    int isa;
    size_t size[2], out[2];
    size_t outs, blocks, block, tile, band, plane_rows;
    std::vector<Phase> phases;
    std::vector<Strip> strips;
    std::vector<uint32_t> first;  // by block, then output channel
    std::vector<float> values;
    std::vector<uint32_t> offsets[2];  // in bytes: for strips of whole registers, and for the last
};

namespace {

using Baked = SparseBaked;

struct Unit {
    const Window* window;
    const Baked* baked;
    const Strip* strip;
    const float *x, *bias;
    float *out, *lowered, *sums;
    size_t row, rows, out_first, out_last;
};

#define PACELINE_KERNELS "sparse_convolution_kernels.h"
#include "foreach_isa.h"

// A thread's own room, which grows and stays; null where there is no more memory.
float* room(size_t floats) {
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    thread_local std::unique_ptr<float, Free> held;
    thread_local size_t size = 0;
    if (size < floats) {
        held.reset();
        size = 0;
        const size_t bytes = up(4 * floats, 4096) * 4096;
        held.reset(static_cast<float*>(std::aligned_alloc(4096, bytes)));
        if (!held) return nullptr;
        std::memset(held.get(), 0, bytes);
        size = bytes / 4;
    }
    return held.get();
}


size_t power_of_two(size_t least) {
    size_t power = 1;
    while (power < least) power *= 2;
    return power;
}

void lay_out(const Window& w, size_t weights, size_t lanes, Baked& b) {
    const size_t whole = b.out[1] / lanes, rest = b.out[1] % lanes;
    for (size_t i = 0; i < whole; i++) b.strips.push_back({i * lanes, lanes, lanes, nullptr});
    if (rest) b.strips.push_back({whole * lanes, rest, power_of_two(rest), nullptr});
    const size_t pitch = b.strips.front().pitch, most_rows = lanes / b.strips.back().pitch;
    const size_t registers = up(b.out[0], lanes / pitch);
    b.tile = up(registers, up(registers, kMostTile));

    const auto extent = [&](size_t rows) {
        size_t sum = 0;
        for (const Phase& phase : b.phases) sum += rows + phase.reach;
        return sum;
    };
    for (size_t number = 0; number < w.stride[0]; number++) {
        size_t reach = 0;
        bool used = false;
        for (size_t k = 0; k < w.kernel[0]; k++)
            if (k * w.dilation[0] % w.stride[0] == number) used = true, reach = k * w.dilation[0] / w.stride[0];
        if (used) b.phases.push_back({number, 0, reach});
    }
    const size_t group = w.channels / w.groups, columns = w.kernel[1] * pitch * 4;
    const size_t step = b.tile * most_rows;
    b.band = step;
    while (b.band < b.out[0] && group * columns * extent(b.band + step) <= kBandBytes) b.band += step;
    b.band = std::min(b.band, b.out[0]);
    b.plane_rows = extent(b.band);
    for (size_t i = 1; i < b.phases.size(); i++) b.phases[i].base = b.phases[i - 1].base + b.band + b.phases[i - 1].reach;

    const size_t near = kNearBytes / (columns * extent(b.tile * (lanes / pitch)));
    const size_t least = up(kLeastWeights * group * w.out_channels, std::max<size_t>(weights, 1));
    b.blocks = up(group, std::min(group, std::max<size_t>({near, least, 1})));
    b.block = up(group, b.blocks);
    b.blocks = up(group, b.block);
    if (group * w.kernel[1] * b.plane_rows * lanes * 4 > UINT32_MAX) throw std::invalid_argument("the input is too large");
}

// In bytes, where a tap's input lies behind an output's.
uint32_t offset_of(const Window& w, const Baked& b, uint32_t tap, size_t pitch) {
    const size_t column = tap % w.kernel[1], row = tap / w.kernel[1] % w.kernel[0], channel = tap / w.kernel[1] / w.kernel[0];
    const size_t at = row * w.dilation[0], number = at % w.stride[0];
    const Phase& phase = *std::find_if(b.phases.begin(), b.phases.end(), [&](const Phase& p) { return p.number == number; });
    const size_t rows = (channel * w.kernel[1] + column) * b.plane_rows + phase.base + at / w.stride[0];
    return static_cast<uint32_t>(rows * pitch * 4);
}

void sort_weights(const Window& w, const SparseWeights& weights, Baked& b) {
    const size_t count = weights.values.size(), taps = b.block * w.kernel[0] * w.kernel[1];
    b.first.reserve(b.blocks * w.out_channels + 1);
    b.values.reserve(count);
    const bool both = b.strips.front().pitch != b.strips.back().pitch;
    for (auto& offsets : b.offsets) offsets.reserve(count);
    std::vector<uint32_t> next(weights.first.begin(), weights.first.end() - 1);
    for (size_t block = 0; block < b.blocks; block++)
        for (size_t out = 0; out < w.out_channels; out++) {
            b.first.push_back(static_cast<uint32_t>(b.values.size()));
            for (uint32_t& j = next[out]; j < weights.first[out + 1] && weights.taps[j] < (block + 1) * taps; j++) {
                b.values.push_back(weights.values[j]);
                b.offsets[0].push_back(offset_of(w, b, weights.taps[j], b.strips.front().pitch));
                if (both) b.offsets[1].push_back(offset_of(w, b, weights.taps[j], b.strips.back().pitch));
            }
        }
    b.first.push_back(static_cast<uint32_t>(b.values.size()));
    for (Strip& strip : b.strips) strip.offsets = b.offsets[0].data();
    if (both) b.strips.back().offsets = b.offsets[1].data();
}

void need(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

// One call: every image, group, strip, band and part of a group's output channels is a unit.
struct Call {
    const Window& window;
    const Baked& baked;
    const float *x, *bias;
    float* out;
    size_t bands, parts, part;
    std::atomic<bool> failed{false};

    size_t units(size_t batch) const { return batch * window.groups * baked.strips.size() * bands * parts; }

    void work(size_t i) {
        const size_t part_number = i % parts, band = i / parts % bands, strip = i / parts / bands % baked.strips.size();
        const size_t rest = i / parts / bands / baked.strips.size(), group = rest % window.groups, image = rest / window.groups;
        const size_t channels = window.channels / window.groups, outs = window.out_channels / window.groups;
        const size_t lowered = up(channels * window.kernel[1] * baked.plane_rows * baked.strips[0].pitch + 32, 16) * 16;
        Unit unit;
        unit.window = &window;
        unit.baked = &baked;
        unit.strip = &baked.strips[strip];
        unit.x = x + (image * window.channels + group * channels) * baked.size[0] * baked.size[1];
        unit.bias = bias;
        unit.out = out + image * window.out_channels * baked.out[0] * baked.out[1];
        unit.row = band * baked.band;
        unit.rows = std::min(baked.band, baked.out[0] - unit.row);
        unit.out_first = group * outs + part_number * part;
        unit.out_last = std::min(unit.out_first + part, (group + 1) * outs);
        unit.lowered = room(lowered + part * baked.tile * 16);
        if (!unit.lowered) {
            failed = true;
            return;
        }
        unit.sums = unit.lowered + lowered;
        PACELINE_CALL(unit_of)(unit);
    }
};

}  // namespace

SparseConvolution::SparseConvolution(const Window& w, SparseWeights weights) : window(w), weights_(std::move(weights)) {
    need(w.channels && w.out_channels && w.groups, "a convolution needs channels");
    need(w.channels % w.groups == 0 && w.out_channels % w.groups == 0, "the groups do not divide the channels");
    for (int dim = 0; dim < 2; dim++) need(w.kernel[dim] && w.stride[dim] && w.dilation[dim], "kernel, stride and dilation are 1 or more");
    const std::vector<uint32_t>& first = weights_.first;
    const size_t count = weights_.values.size(), taps = w.channels / w.groups * w.kernel[0] * w.kernel[1];
    need(first.size() == w.out_channels + 1 && weights_.bias.size() == w.out_channels, "one row and one bias for each output channel");
    need(count < UINT32_MAX && weights_.taps.size() == count, "one tap for each value");
    need(first.front() == 0 && first.back() == count && std::is_sorted(first.begin(), first.end()), "rows that are not in order");
    for (size_t out = 0; out < w.out_channels; out++)
        for (uint32_t j = first[out]; j < first[out + 1]; j++)
            need(weights_.taps[j] < taps && (j == first[out] || weights_.taps[j - 1] < weights_.taps[j]), "taps that are not in order");
}

size_t SparseConvolution::out_size(size_t size, int dim) const {
    const size_t padded = size + 2 * window.padding[dim], reach = (window.kernel[dim] - 1) * window.dilation[dim] + 1;
    need(padded >= reach, "the kernel is larger than the padded input");
    return (padded - reach) / window.stride[dim] + 1;
}

std::shared_ptr<const SparseBaked> SparseConvolution::baked(size_t height, size_t width) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!last_ || last_->isa != g_isa || last_->size[0] != height || last_->size[1] != width) {
        auto made = std::make_shared<Baked>();
        made->isa = g_isa;
        made->outs = window.out_channels;
        const size_t size[2] = {height, width};
        for (int dim = 0; dim < 2; dim++) {
            made->size[dim] = size[dim];
            made->out[dim] = out_size(size[dim], dim);
        }
        lay_out(window, weights_.values.size(), PACELINE_CALL(lanes)(), *made);
        sort_weights(window, weights_, *made);
        last_ = made;
    }
    return last_;
}

void SparseConvolution::run(const float* x, size_t batch, size_t height, size_t width, float* out, const Workers& workers) const {
    if (batch == 0) return;
    const std::shared_ptr<const Baked> b = baked(height, width);
    const size_t bands = up(b->out[0], b->band), outs = window.out_channels / window.groups;
    Call call{window, *b, x, weights_.bias.data(), out, bands, 1, outs};
    const size_t wanted = workers.threads > 1 ? up(2 * workers.threads, call.units(batch)) : 1;
    call.part = up(outs, std::min(wanted, outs));
    call.parts = up(outs, call.part);
    workers.for_each(workers.self, call.units(batch), [](void* context, size_t i) { static_cast<Call*>(context)->work(i); }, &call);
    if (call.failed) throw std::bad_alloc();
}

}  // namespace paceline
