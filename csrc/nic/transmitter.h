// What the host sends: fp32 values of marked flows leave compressed, everything else as it came.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "batch.h"
#include "codec.h"
#include "message_stream.h"
#include "statistics.h"
#include "throttle.h"

namespace paceline::nic {

// Addresses and ports of one direction of a connection.
using FlowKey = std::array<char, 37>;
FlowKey flow_key(const uint8_t* frame, const TcpPacket& packet);

class Transmitter {
   public:
    // `mtu`: bytes of the largest IP packet on the wire.
    Transmitter(const Codec& codec, size_t mtu, SentCounts* counts, double bytes_per_s = 0)
        : codec_(codec), mtu_(mtu), counts_(*counts), engine_(bytes_per_s) {}

    // Adds what goes on the wire for one frame of the host.
    void transmit(const Frame& frame, Batch& to);

   private:
    struct Flow {
        MessageStream stream;
        uint64_t used;
    };
    struct Hash {
        size_t operator()(const FlowKey& key) const { return std::hash<std::string_view>{}({key.data(), key.size()}); }
    };

    static constexpr size_t kMostFlows = 4096, kLeastSegment = 64;

    MessageStream& stream_of(const uint8_t* frame, const TcpPacket& packet, uint32_t sequence, size_t skip);
    bool compress(const Frame& frame, const TcpPacket& packet, size_t segment, Batch& to);
    bool guard(const Frame& frame, const TcpPacket& packet, size_t segment, Batch& to);
    void put_guarded(const Frame& frame, const TcpPacket& packet, size_t offset, size_t n, bool last, size_t* index, Batch& to);

    const Codec& codec_;
    const size_t mtu_;
    SentCounts& counts_;
    Throttle engine_;
    uint64_t clock_ = 0;
    std::unordered_map<FlowKey, Flow, Hash> flows_;
};

}  // namespace paceline::nic
