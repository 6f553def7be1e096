#include "message_stream.h"

#include <algorithm>
#include <cstring>

namespace paceline::nic {

void MessageStream::follow(uint32_t sequence, const uint8_t* payload, size_t n, StreamCounts* counts) {
    if (!n) return;
    const uint64_t begin = place(sequence), end = begin + n;
    if (alone_) return go_on(end > position_ ? end - position_ : 0);  // so that what was fp32 stays where it was
    if (begin < position_) counts->retransmitted++;
    if (end <= position_) return;
    if (begin > position_ && begin <= data_end_) go_on(begin - position_);  // all that is missing are data of the message under way
    if (begin > position_) {
        counts->gaps++;
        auto& held = held_[begin];
        if (n <= held.size()) return;
        held_bytes_ += n - held.size();
        if (int64_t(begin - position_) > kMostGap || held_bytes_ > kMostHeld) return leave_alone(counts);
        held.assign(payload, payload + n);
        return;
    }
    advance(payload + (position_ - begin), size_t(end - position_), counts);
    while (!alone_ && !held_.empty() && held_.begin()->first <= position_) {
        const auto first = held_.begin();
        const uint64_t seen = position_ - first->first;
        if (seen < first->second.size()) advance(first->second.data() + seen, first->second.size() - seen, counts);
        if (alone_) return;
        held_bytes_ -= first->second.size();
        held_.erase(first);
    }
}

void MessageStream::advance(const uint8_t* bytes, size_t n, StreamCounts* counts) {
    while (n && !alone_) {
        size_t step;
        if (position_ < data_end_) {
            step = size_t(std::min<uint64_t>(data_end_ - position_, n));
        } else {
            step = std::min(kPreamble - filled_, n);
            std::memcpy(preamble_ + filled_, bytes, step);
            filled_ += step;
        }
        bytes += step, n -= step;
        go_on(step);
        if (filled_ == kPreamble) take_preamble(counts);
    }
    go_on(n);  // the rest of a flow that is left alone
}

void MessageStream::take_preamble(StreamCounts* counts) {
    uint64_t field[6];  // bytes, opcode, slot, offset, length, roffset
    for (int i = 0; i < 6; i++) {
        field[i] = 0;
        for (int j = 7; j >= 0; j--) field[i] = field[i] << 8 | preamble_[8 * i + j];
    }
    filled_ = 0;
    const bool has_data = field[1] <= 1;
    const uint64_t data = has_data ? field[4] : 0;
    if (field[1] > 3 || data > kMostMessage || field[0] != kPreamble + data) return leave_alone(counts);
    data_end_ = position_ + data;
    if (data < kLeastData || data % 4) return;
    regions_.push_back({position_, data_end_});
    if (regions_.size() > kRegions) regions_.pop_front();
}

void MessageStream::leave_alone(StreamCounts* counts) {
    alone_ = true;
    counts->left_alone++;
    held_.clear();
}

bool MessageStream::runs(uint32_t sequence, size_t n, Run* to, size_t most, size_t* count) const {
    uint64_t at = place(sequence);
    const uint64_t end = std::min(at + n, position_);
    const uint64_t stop = at + n;
    *count = 0;
    // The first region that ends behind the segment's begin.
    auto region = std::partition_point(regions_.begin(), regions_.end(), [at](const Region& r) { return r.end <= at; });
    for (; region != regions_.end() && region->begin < end; ++region) {
        const uint64_t from = std::max(at, region->begin), first = from + (region->begin - from) % 4;
        const uint64_t until = std::min(end, region->end);
        if (first + 4 > until) continue;
        if (*count == most) return false;
        const uint64_t values = (until - first) / 4;
        to[(*count)++] = {uint16_t(first - at), uint16_t(values)};
        at = first + 4 * values;
    }
    if (at < stop && *count) {
        if (*count == most) return false;
        to[(*count)++] = {uint16_t(stop - at), 0};
    }
    return true;
}

}  // namespace paceline::nic
