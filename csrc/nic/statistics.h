// What a card counts, in a file that others read while it runs (src/paceline/lab/card.py): 8 bytes of magic, then u64 after u64.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace paceline::nic {

// A number that one thread adds to and others read.
class Count {
   public:
    void add(uint64_t n = 1) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
    void set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<uint64_t> value_{0};
};
static_assert(sizeof(Count) == 8);

// Of what the host sends. Bytes are those of TCP payload of marked segments: as the host sent them, as the wire carried them.
struct SentCounts {
    Count frames, segments, compressed, bytes_before, bytes_after, verbatim, retransmitted, gaps, flows, left_alone, dropped;
};

// Of what comes from the wire. Bytes are those of TCP payload of compressed segments: as they came, as the host got them.
struct ReceivedCounts {
    Count frames, restored, bytes_before, bytes_after, damaged, dropped;
};

struct Statistics {
    char magic[8] = {'P', 'N', 'S', 'T', 'A', 'T', '0', '1'};
    Count process, ready;
    SentCounts sent;
    ReceivedCounts received;
};

// The statistics in a new file of that name; in memory alone without a name. Throws std::runtime_error.
Statistics* map_statistics(const std::string& path);

}  // namespace paceline::nic
