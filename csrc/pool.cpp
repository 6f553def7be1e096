#include "pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "bind.h"

namespace paceline {
namespace {

constexpr int kMostThreads = 1024;

// The chunks of one call, which every thread that works on it takes one by one.
struct Round {
    const size_t chunks;
    const Task task;
    void* const context;
    std::atomic<size_t> next{0};

    void work() {
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) task(context, i);
    }
};

class Pool {
  public:
    void run(Round& round, int threads) {
        const size_t most = std::min<size_t>({round.chunks, static_cast<size_t>(std::max(threads, 1)), kMostThreads});
        std::unique_lock<std::mutex> mine(owner_, std::defer_lock);
        if (most < 2 || !mine.try_lock()) {
            round.work();
            return;
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            grow(static_cast<int>(most) - 1);
            now_ = &round;
            wanted_ = std::min(static_cast<int>(most) - 1, started_);
            round_++;
        }
        wake_.notify_all();
        round.work();
        std::unique_lock<std::mutex> lock(mutex_);
        wanted_ = 0;  // who has not begun by now need not
        idle_.wait(lock, [this] { return busy_ == 0; });
    }

    int size() {
        std::lock_guard<std::mutex> lock(mutex_);
        return started_;
    }

  private:
    void grow(int count) {
        for (; started_ < count; started_++) {
            try {
                std::thread([this] { loop(); }).detach();
            } catch (const std::system_error&) {
                return;  // the machine gives no more: go on with those there are
            }
        }
    }

    void loop() {
        unsigned long seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return round_ != seen && wanted_ > 0; });
            seen = round_;
            wanted_--;
            busy_++;
            Round* const now = now_;
            lock.unlock();
            now->work();
            lock.lock();
            if (--busy_ == 0) idle_.notify_one();
        }
    }

    std::mutex owner_, mutex_;
    std::condition_variable wake_, idle_;
    Round* now_ = nullptr;
    unsigned long round_ = 0;
    int wanted_ = 0, busy_ = 0, started_ = 0;
};

// Never destroyed: its threads live as long as the process. The buffer, not the heap: a forked child makes its own in place.
alignas(Pool) unsigned char g_room[sizeof(Pool)];
Pool* g_pool = nullptr;

void make_pool() { g_pool = new (g_room) Pool; }

Pool& pool() {
    static const bool once = [] {
        make_pool();
        pthread_atfork(nullptr, nullptr, make_pool);
        return true;
    }();
    (void)once;
    return *g_pool;
}

// How compilers start a parallel region, in GNU's and LLVM's OpenMP alike: fn(data) on `threads` threads, this one included.
using Parallel = void (*)(void (*fn)(void*), void* data, unsigned threads, unsigned flags);

bool g_forked = false;  // since this module was loaded: OpenMP's threads may be lost, and it would wait for them

// Whether there are threads beside this one; a child that was forked before this module was loaded begins without.
bool has_threads() {
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > 3;  // a link a thread, and two
}

// Looked up, not linked: a second OpenMP would have threads of its own. Where none run yet, none spin.
Parallel openmp() {
    static const Parallel found = has_threads() ? reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel")) : nullptr;
    return g_forked ? nullptr : found;
}

}  // namespace

void run_chunks(size_t chunks, int threads, Task task, void* context) {
    Round round{chunks, task, context};
    pool().run(round, threads);
}

void run_team(size_t chunks, int threads, Task task, void* context) {
    // A region ends when all its threads have come, even late to nothing; the pool does not wait for who has not begun.
    const bool worth_it = threads > 1 && chunks >= 8 * static_cast<size_t>(threads);
    const Parallel parallel = worth_it ? openmp() : nullptr;
    if (parallel == nullptr) return run_chunks(chunks, threads, task, context);
    Round round{chunks, task, context};
    const auto work = [](void* data) { static_cast<Round*>(data)->work(); };
    parallel(work, &round, static_cast<unsigned>(std::min(threads, kMostThreads)), 0);
}

void bind_pool(nb::module_& m) {
    pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
    m.def("pool_threads", [] { return pool().size(); }, "Threads that the pool has started in this process.");
}

}  // namespace paceline
