// A persistent pool of threads. A warm call allocates nothing, needs no OpenMP, and works after fork: the child starts its own.
#pragma once

#include <cstddef>

namespace paceline {

using Task = void (*)(void* context, size_t chunk);

// Calls task(context, i) for every i below chunks, on up to `threads` threads, this one included, and returns when all are done.
// A caller that finds the pool busy does its chunks alone. Tasks must not throw. Call without the GIL.
void run_chunks(size_t chunks, int threads, Task task, void* context);

// The same on the threads of the process's OpenMP, where it has one and did not fork, else on the pool. For calls between
// operations of torch: threads that ran the last one spin for a few ms, on the cores that the pool's would need.
void run_team(size_t chunks, int threads, Task task, void* context);

template <class F>
void parallel_for(size_t chunks, int threads, F&& f) {
    run_chunks(chunks, threads, [](void* context, size_t chunk) { (*static_cast<F*>(context))(chunk); }, &f);
}

template <class F>
void parallel_team(size_t chunks, int threads, F&& f) {
    run_team(chunks, threads, [](void* context, size_t chunk) { (*static_cast<F*>(context))(chunk); }, &f);
}

// Elements of one chunk: a multiple of 64, so that every chunk starts at a block of bit planes; 256 KiB of fp32.
constexpr size_t kChunk = size_t{1} << 16;

// Calls f(first, last) for ranges of elements that cover 0 to n; ranges start at multiples of kChunk.
template <class F>
void parallel_ranges(size_t n, int threads, F&& f) {
    const size_t chunks = (n + kChunk - 1) / kChunk;
    parallel_for(chunks, threads, [&](size_t chunk) {
        const size_t first = chunk * kChunk;
        f(first, first + kChunk < n ? first + kChunk : n);
    });
}

}  // namespace paceline
