// What comes from the wire: compressed segments are restored, and neighbours of a flow handed to the host as one large packet.
#pragma once

#include "batch.h"
#include "codec.h"
#include "segment.h"
#include "statistics.h"
#include "throttle.h"

namespace paceline::nic {

class Receiver {
   public:
    Receiver(const Codec& codec, bool merge, ReceivedCounts* counts, double bytes_per_s = 0)
        : codec_(codec), merge_(merge), counts_(*counts), engine_(bytes_per_s) {}

    // Adds what the host gets for one frame of the wire. A large packet that may still grow is complete only after finish.
    void receive(const Frame& frame, Batch& to);

    // The batch is about to leave.
    void finish(Batch& to);

   private:
    // A packet that the host will get: its headers, and payload so far.
    struct Large {
        TcpPacket packet;
        uint8_t* data;
        size_t size, segment, count, frame;  // bytes, bytes of payload of its first segment, segments, its place in the batch
    };

    static constexpr size_t kMostLarge = 8;

    void close(size_t which, Batch& to);
    void close_flow(const uint8_t* frame, const TcpPacket& packet, Batch& to);
    Large* find(const uint8_t* frame, const TcpPacket& packet);
    bool continues(const Large& large, const uint8_t* frame, const TcpPacket& packet, size_t bytes) const;

    const Codec& codec_;
    const bool merge_;
    ReceivedCounts& counts_;
    Throttle engine_;
    Large large_[kMostLarge];
    size_t open_ = 0;
};

}  // namespace paceline::nic
