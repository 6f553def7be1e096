// The k elements of largest magnitude, exactly, and where they are (src/paceline/codecs/reference/topk.py is the specification).
//
// Encoding reads x once. A threshold that about a quarter more than k elements reach is guessed from a sample; that pass marks
// them, one bit each, keeps their values and counts the upper halves of their magnitudes. The rest looks at the marked ones only:
// the counts give the upper half of the k-th magnitude, a second count its lower half, a third pass writes. Only a wrong guess
// (fewer than k marked) costs a second pass over x, with all but zeros marked; where even those are fewer than k, the first
// zeros are sent too.
#include <memory>

#include "pool.h"
#include "topk.h"

namespace paceline {
namespace {

constexpr int kCoarseShift = 16;
constexpr size_t kCoarse = size_t{1} << (31 - kCoarseShift), kFineBins = size_t{1} << kCoarseShift;
constexpr uint32_t kRoom = kChunk / 16;  // marked elements of a chunk whose values are kept; beyond, x is read again

struct Marked {
    uint32_t found, most;  // how many, and the bits of the largest magnitude
};

#define PACELINE_KERNELS "topk_kernels.h"
#include "foreach_isa.h"

struct Chunk {
    uint32_t found, above, equal;
    size_t rank, ties;  // elements sent and ties seen in the chunks before
};

// Grows to the largest tensor of its thread and stays: a warm call allocates nothing.
struct Scratch {
    size_t chunks = 0;
    std::unique_ptr<uint64_t[]> marks;
    std::unique_ptr<uint32_t[]> words;
    std::unique_ptr<Chunk[]> chunk;
    std::unique_ptr<uint32_t[]> coarse, fine;

    void reserve(size_t wanted) {
        if (!coarse) coarse.reset(new uint32_t[kCoarse]), fine.reset(new uint32_t[kFineBins]);
        if (wanted <= chunks) return;
        marks.reset(), words.reset(), chunk.reset(), chunks = 0;
        marks.reset(new uint64_t[wanted * (kChunk / 64)]);
        words.reset(new uint32_t[wanted * kRoom]);
        chunk.reset(new Chunk[wanted]);
        chunks = wanted;
    }
};

inline void add_atomic(uint32_t& counter, uint32_t more) {
    if (more) __atomic_fetch_add(&counter, more, __ATOMIC_RELAXED);
}

// The bin in which the rank-th element from the top lies (rank from 1); rank becomes its rank within that bin.
size_t bin_of(const uint32_t* counts, size_t bins, size_t& rank) {
    size_t bin = bins;
    while (bin-- > 0) {
        if (counts[bin] >= rank) return bin;
        rank -= counts[bin];
    }
    return 0;
}

// A magnitude that somewhat more than `kept` of n elements reach, probably. Any answer leads to the right result.
uint32_t guess(const float* x, size_t n, size_t kept, uint32_t* counts) {
    constexpr size_t kMost = size_t{1} << 14;
    const size_t samples = std::min(n / 16, kMost);
    if (samples < 1024) return 0;
    std::fill_n(counts, kCoarse, 0u);
    const size_t stride = n / samples;
    for (size_t i = 0; i < samples; i++) {
        const uint32_t hash = static_cast<uint32_t>(i) * 0x9e3779b9u;  // a fixed stride would meet the columns of a matrix
        counts[magnitude_at(x, i * stride + (static_cast<uint64_t>(hash) * stride >> 32)) >> kCoarseShift]++;
    }
    const double expected = static_cast<double>(samples) * static_cast<double>(kept) / static_cast<double>(n);
    size_t rank = static_cast<size_t>(expected + 4 * __builtin_sqrt(expected) + 8);
    if (rank >= samples) return 0;
    return static_cast<uint32_t>(bin_of(counts, kCoarse, rank) << kCoarseShift);
}

// Calls f(index, bits) for the marked elements of a chunk, in order.
template <class F>
void each_marked(const float* x, size_t chunk, const Scratch& s, F&& f) {
    const size_t first = chunk * kChunk;
    const uint64_t* marks = s.marks.get() + chunk * (kChunk / 64);
    const uint32_t found = s.chunk[chunk].found;
    const uint32_t* kept = found <= kRoom ? s.words.get() + chunk * kRoom : nullptr;
    uint32_t seen = 0;
    for (size_t w = 0; seen < found; w++)
        for (uint64_t word = marks[w]; word; word &= word - 1, seen++) {
            const size_t index = first + 64 * w + static_cast<size_t>(__builtin_ctzll(word));
            f(index, kept ? kept[seen] : bits_at(x, index));
        }
}

// Calls f(bits) for the marked elements of a chunk.
template <class F>
void each_value(const float* x, size_t chunk, const Scratch& s, F&& f) {
    const uint32_t found = s.chunk[chunk].found;
    if (found > kRoom) return each_marked(x, chunk, s, [&](size_t, uint32_t bits) { f(bits); });
    const uint32_t* words = s.words.get() + chunk * kRoom;
    for (uint32_t i = 0; i < found; i++) f(words[i]);
}

// A thread's own counts; zero between uses.
thread_local uint32_t t_counts[kCoarse];

// Marks the elements of magnitude `least` or more and counts them by the upper half of their magnitudes. Returns their number.
size_t mark_all(const float* x, size_t n, uint32_t least, Scratch& s, int threads) {
    std::fill_n(s.coarse.get(), kCoarse, 0u);
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        const size_t c = first / kChunk;
        uint32_t* own = t_counts;
        const Marked marked = PACELINE_CALL(mark)(x + first, last - first, least, s.marks.get() + c * (kChunk / 64),
                                                  s.words.get() + c * kRoom, kRoom, own);
        s.chunk[c].found = marked.found;
        for (size_t bin = least >> kCoarseShift; bin <= marked.most >> kCoarseShift; bin++) {
            add_atomic(s.coarse[bin], own[bin]);
            own[bin] = 0;
        }
    });
    size_t found = 0;
    for (size_t c = 0; c * kChunk < n; c++) found += s.chunk[c].found;
    return found;
}

// Marks, of the chunks that hold the first `missing` zeros, every element.
void mark_zeros(const float* x, size_t n, size_t missing, Scratch& s) {
    for (size_t c = 0; missing; c++) {
        const size_t first = c * kChunk, size = std::min(kChunk, n - first);
        missing -= std::min(missing, size - s.chunk[c].found);
        const Marked marked = PACELINE_CALL(mark)(x + first, size, 0, s.marks.get() + c * (kChunk / 64), s.words.get() + c * kRoom,
                                                  kRoom, t_counts);
        std::fill_n(t_counts, (marked.most >> kCoarseShift) + 1, 0u);
        s.chunk[c].found = marked.found;
    }
}

// The bits of the k-th largest magnitude; `ties` becomes how many of those equal to it are sent.
uint32_t threshold(const float* x, size_t chunks, size_t kept, Scratch& s, int threads, size_t& ties) {
    ties = kept;
    const uint32_t upper = static_cast<uint32_t>(bin_of(s.coarse.get(), kCoarse, ties));
    std::fill_n(s.fine.get(), kFineBins, 0u);
    parallel_for(chunks, threads, [&](size_t c) {
        uint32_t bin = 0, run = 0;  // equal ones in a row count at once
        each_value(x, c, s, [&](uint32_t bits) {
            if ((bits & kMagnitude) >> kCoarseShift != upper) return;
            if ((bits & (kFineBins - 1)) != bin) {
                add_atomic(s.fine[bin], run);
                bin = bits & (kFineBins - 1), run = 0;
            }
            run++;
        });
        add_atomic(s.fine[bin], run);
    });
    return upper << kCoarseShift | static_cast<uint32_t>(bin_of(s.fine.get(), kFineBins, ties));
}

// Writes what a chunk sends. Its marks may share their first and last byte with other chunks'.
void write_chunk(const float* x, size_t c, const Scratch& s, uint32_t least, size_t ties, const Layout& at, uint8_t* body) {
    size_t rank = s.chunk[c].rank, seen = s.chunk[c].ties, byte = 0;
    uint8_t* values = body + at.marks;
    uint8_t* low = values + at.values;
    const size_t value_bytes = at.kept ? at.values / at.kept : 0;
    unsigned pending = 0;
    const auto flush = [&] {
        if (pending) __atomic_fetch_or(body + byte, static_cast<uint8_t>(pending), __ATOMIC_RELAXED);
    };
    each_marked(x, c, s, [&](size_t index, uint32_t bits) {
        const uint32_t magnitude = bits & kMagnitude;
        if (magnitude < least || (magnitude == least && seen++ >= ties)) return;
        const size_t place = at.low_bits ? rank + (index >> at.low_bits) : index;
        if (place / 8 != byte) {
            flush();
            byte = place / 8, pending = 0;
        }
        pending |= 1u << place % 8;
        if (value_bytes == 4) {
            std::memcpy(values + 4 * rank, &bits, 4);
        } else {
            const uint16_t half = bf16_of(bits);
            std::memcpy(values + 2 * rank, &half, 2);
        }
        if (at.low_bits == 8) {
            low[rank] = static_cast<uint8_t>(index);
        } else if (at.low_bits) {
            const uint16_t part = static_cast<uint16_t>(index);
            std::memcpy(low + 2 * rank, &part, 2);
        }
        rank++;
    });
    flush();
}

int encode(const ConstFloats& x_, const Bytes& body_, size_t kept, int low_bits, int value_bits, int threads) {
    const size_t n = x_.size(), chunks = (n + kChunk - 1) / kChunk;
    const Layout at = layout_of(n, kept, low_bits, value_bits);
    need_bytes(body_.size(), at.total);
    if (!n) return 0;
    const float* x = x_.data();
    uint8_t* body = body_.data();
    thread_local Scratch s;
    s.reserve(chunks);
    nb::gil_scoped_release release;
    Scratch& scratch = s;  // the pool's threads see this thread's
    uint32_t least = std::max(guess(x, n, kept, scratch.coarse.get()), 1u);
    size_t found = mark_all(x, n, least, scratch, threads), ties = 0;
    if (found < kept && least > 1) found = mark_all(x, n, 1, scratch, threads);
    for (size_t bin = kInfinityBits >> kCoarseShift; bin < kCoarse; bin++)
        if (scratch.coarse[bin]) return kBadValue;
    if (found >= kept) {
        least = threshold(x, chunks, kept, scratch, threads, ties);
    } else {
        least = 0, ties = kept - found;
        mark_zeros(x, n, ties, scratch);
    }
    parallel_for(chunks, threads, [&](size_t c) {
        uint32_t above = 0, equal = 0;
        each_value(x, c, scratch, [&](uint32_t bits) {
            above += (bits & kMagnitude) > least;
            equal += (bits & kMagnitude) == least;
        });
        scratch.chunk[c].above = above, scratch.chunk[c].equal = equal;
    });
    size_t above = 0, equal = 0;
    for (size_t c = 0; c < chunks; c++) {
        scratch.chunk[c].rank = above + std::min(equal, ties);
        scratch.chunk[c].ties = equal;
        above += scratch.chunk[c].above, equal += scratch.chunk[c].equal;
    }
    std::memset(body, 0, at.marks);
    parallel_for(chunks, threads, [&](size_t c) { write_chunk(x, c, scratch, least, ties, at, body); });
    return 0;
}

template <int kMode, int kValueBits>
void scatter(const uint8_t* body, const Layout& at, float* out) {
    const uint8_t* values = body + at.marks;
    each_sent(body, at, [=](size_t j, size_t index) {
        uint32_t bits;
        if (kValueBits == 32) {
            std::memcpy(&bits, values + 4 * j, 4);
        } else {
            uint16_t half;
            std::memcpy(&half, values + 2 * j, 2);
            bits = static_cast<uint32_t>(half) << 16;
        }
        float before, value = float_of(bits);
        std::memcpy(&before, out + index, 4);
        if (kMode != kSet) value = kMode == kAdd ? before + value : before - value;
        std::memcpy(out + index, &value, 4);
    });
}

template <int kMode>
void scatter(const uint8_t* body, const Layout& at, int value_bits, float* out) {
    value_bits == 32 ? scatter<kMode, 32>(body, at, out) : scatter<kMode, 16>(body, at, out);
}

int decode(const ConstBytes& body_, const Floats& out_, size_t kept, int low_bits, int value_bits, int mode, int threads) {
    const size_t n = out_.size();
    const Layout at = layout_of(n, kept, low_bits, value_bits);
    if (body_.size() != at.total) return kWrongSize;
    const uint8_t* body = body_.data();
    float* out = out_.data();
    nb::gil_scoped_release release;
    if (const int bad = refusal(body, at, n, value_bits)) return bad;
    if (mode == kSet) {
        parallel_ranges(n, threads, [&](size_t first, size_t last) { std::memset(out + first, 0, 4 * (last - first)); });
        scatter<kSet>(body, at, value_bits, out);
    } else if (mode == kAdd) {
        scatter<kAdd>(body, at, value_bits, out);
    } else {
        scatter<kSubtract>(body, at, value_bits, out);
    }
    return 0;
}

}  // namespace

void bind_topk(nb::module_& m) {
    m.def("topk_encode", &encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("kept"), nb::arg("low_bits"),
          nb::arg("value_bits"), nb::arg("threads"), "The body; not 0 when x has NaN or infinity.");
    m.def("topk_decode", &decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("kept"), nb::arg("low_bits"),
          nb::arg("value_bits"), nb::arg("mode"), nb::arg("threads"),
          "0, or a status that says what is wrong with the body; out is then unchanged.");
}

}  // namespace paceline
