// An engine that takes so many bytes a second: whoever hands it more waits.
#pragma once

#include <cstddef>
#include <ctime>

namespace paceline::nic {

class Throttle {
   public:
    // 0: as fast as the processor.
    explicit Throttle(double bytes_per_s) : seconds_per_byte_(bytes_per_s > 0 ? 1 / bytes_per_s : 0) {}

    void take(size_t bytes) {
        if (seconds_per_byte_ == 0) return;
        const double now = clock();
        if (free_at_ < now - kCredit) free_at_ = now - kCredit;
        free_at_ += double(bytes) * seconds_per_byte_;
        const double wait = free_at_ - now;
        if (wait < kLeastWait) return;
        timespec time{time_t(wait), long((wait - double(time_t(wait))) * 1e9)};
        while (nanosleep(&time, &time) != 0) {}
    }

   private:
    static constexpr double kCredit = 1e-3;       // seconds, as of the links' buckets: makes up for a sleep that took too long
    static constexpr double kLeastWait = 200e-6;  // seconds; a shorter sleep takes longer than it should

    static double clock() {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
    }

    double seconds_per_byte_, free_at_ = 0;
};

}  // namespace paceline::nic
