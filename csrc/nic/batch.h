// Frames that are ready to leave, and the memory of those that the card made. What passes untouched stays where it was read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "packet.h"

namespace paceline::nic {

class Batch {
   public:
    // No frame makes more than this of room necessary.
    static constexpr size_t kMostOfOne = size_t{1} << 19;

    explicit Batch(size_t bytes = size_t{8} << 20) : arena_(new uint8_t[bytes]), bytes_(bytes) {}

    bool full() const { return bytes_ - used_ < kMostOfOne; }
    void clear() { used_ = 0, frames.clear(); }

    // Memory for a frame that is about to be made, until take says how much of it was needed.
    uint8_t* room() { return arena_.get() + used_; }
    void take(size_t n) { used_ += n; }

    void pass(const Frame& frame) { frames.push_back(frame); }
    void put(const uint8_t* data, size_t size) { frames.push_back({{}, data, size}); }

    std::vector<Frame> frames;

   private:
    std::unique_ptr<uint8_t[]> arena_;
    size_t bytes_, used_ = 0;
};

}  // namespace paceline::nic
