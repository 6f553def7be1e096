// One direction of a TCP connection between two gloo processes: which of its bytes are fp32 values. gloo sends messages one after the
// other: 48 bytes, six u64 little-endian (bytes, opcode, slot, offset, length, roffset), then for opcodes 0 and 1 `length` bytes of
// data. The end that connected sends 8 bytes before its first message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace paceline::nic {

// So many bytes as they are, then so many fp32 values.
struct Run {
    uint16_t raw, values;
};

struct StreamCounts {
    uint64_t left_alone = 0, retransmitted = 0, gaps = 0;
};

class MessageStream {
   public:
    // The next byte has this sequence number and begins a message, or `skip` bytes that come before the first.
    MessageStream(uint32_t sequence, size_t skip) : next_(sequence), data_end_(kFirst + skip) {}

    // Takes a segment in the order in which the host sent it.
    void follow(uint32_t sequence, const uint8_t* payload, size_t n, StreamCounts* counts);

    // What is known about n bytes from there on, those already followed. Unknown bytes count as raw.
    // Values that a segment's end cuts are raw too. False where more than `most` runs would be needed.
    bool runs(uint32_t sequence, size_t n, Run* to, size_t most, size_t* count) const;

   private:
    struct Region {
        uint64_t begin, end;  // of the data of a message whose data are fp32
    };

    static constexpr size_t kPreamble = 48, kLeastData = 64, kRegions = 1024, kMostHeld = size_t{1} << 20;
    static constexpr int64_t kMostGap = int64_t{1} << 24;
    static constexpr uint64_t kMostMessage = uint64_t{1} << 40;

    uint64_t place(uint32_t sequence) const { return position_ + uint64_t(int64_t(int32_t(sequence - next_))); }
    void advance(const uint8_t* bytes, size_t n, StreamCounts* counts);
    void go_on(uint64_t n) { position_ += n, next_ += uint32_t(n); }
    void take_preamble(StreamCounts* counts);
    void leave_alone(StreamCounts* counts);

    static constexpr uint64_t kFirst = uint64_t{1} << 33;  // a long way from zero, for what came before

    uint32_t next_;               // sequence number of the next byte that has not been seen
    uint64_t position_ = kFirst;  // the same without wrapping
    uint64_t data_end_;           // where the data of the message end that is under way, or what comes before the first
    size_t filled_ = 0, held_bytes_ = 0;
    bool alone_ = false;
    uint8_t preamble_[kPreamble];
    std::deque<Region> regions_;
    std::map<uint64_t, std::vector<uint8_t>> held_;  // what was sent behind a gap
};

}  // namespace paceline::nic
