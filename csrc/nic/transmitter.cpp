#include "transmitter.h"

#include <algorithm>

#include "segment.h"

namespace paceline::nic {
namespace {

// Bytes of payload that a large packet is cut into: all where it is none. 0 where the card cannot cut it.
size_t segment_bytes(const Frame& frame, const TcpPacket& packet, size_t least) {
    const size_t n = frame.size - packet.payload;
    const uint8_t type = frame.offload.gso_type & uint8_t(~kGsoEcn);
    if (type == kGsoNone) return n;
    if (type != (packet.v6 ? kGsoTcp6 : kGsoTcp4) || !(frame.offload.flags & kNeedsChecksum)) return 0;
    return frame.offload.gso_size < least ? 0 : std::min<size_t>(n, frame.offload.gso_size);
}

// A packet whose checksum is already wrong must not get a right one here.
bool checksums_fit(const Frame& frame, const TcpPacket& packet) {
    if (!ip_checksum_fits(frame.data, packet)) return false;
    if (!(frame.offload.flags & kNeedsChecksum)) return tcp_checksum_fits(frame.data, frame.size, packet);
    return frame.offload.checksum_start == packet.tcp && frame.offload.checksum_offset == 16;
}

}  // namespace

FlowKey flow_key(const uint8_t* frame, const TcpPacket& packet) {
    FlowKey key{};
    key[0] = packet.v6;
    const size_t addresses = packet.v6 ? 32 : 8;
    std::memcpy(key.data() + 1, frame + packet.tcp - addresses, addresses + 4);  // the ports come behind the addresses
    return key;
}

void Transmitter::transmit(const Frame& frame, Batch& to) {
    counts_.frames.add();
    TcpPacket packet;
    if (!packet.parse(frame.data, frame.size)) return to.pass(frame);
    const uint8_t dscp = traffic_class(frame.data, packet.v6) & kDscpMask;
    if (packet.flags & (kSyn | kRst)) {  // another connection, whatever the last one with these ports was
        if (!flows_.empty()) flows_.erase(flow_key(frame.data, packet));
        if (packet.flags & kSyn && dscp == kMarked) stream_of(frame.data, packet, packet.sequence + 1, packet.flags & kAck ? 0 : 8);
        return to.pass(frame);
    }
    const bool looks_like_ours = dscp == kCompressed;
    if ((dscp != kMarked && !looks_like_ours) || packet.flags & kUrg || frame.size == packet.payload) return to.pass(frame);
    const size_t segment = checksums_fit(frame, packet) ? segment_bytes(frame, packet, kLeastSegment) : 0;
    if (looks_like_ours ? !guard(frame, packet, segment, to) : !segment || !compress(frame, packet, segment, to)) to.pass(frame);
}

MessageStream& Transmitter::stream_of(const uint8_t* frame, const TcpPacket& packet, uint32_t sequence, size_t skip) {
    const FlowKey key = flow_key(frame, packet);
    auto found = flows_.find(key);
    if (found == flows_.end()) {
        if (flows_.size() >= kMostFlows)
            flows_.erase(std::min_element(flows_.begin(), flows_.end(), [](auto& a, auto& b) { return a.second.used < b.second.used; }));
        counts_.flows.add();
        found = flows_.emplace(key, Flow{MessageStream(sequence, skip), 0}).first;
    }
    found->second.used = ++clock_;
    return found->second.stream;
}

// False where the frame is to pass as it is.
bool Transmitter::compress(const Frame& frame, const TcpPacket& packet, size_t segment, Batch& to) {
    const uint8_t* const payload = frame.data + packet.payload;
    const size_t n = frame.size - packet.payload, count = (n + segment - 1) / segment;
    MessageStream& stream = stream_of(frame.data, packet, packet.sequence, 0);
    StreamCounts counts;
    stream.follow(packet.sequence, payload, n, &counts);
    counts_.segments.add(count), counts_.bytes_before.add(n);
    counts_.left_alone.add(counts.left_alone), counts_.retransmitted.add(counts.retransmitted), counts_.gaps.add(counts.gaps);

    Run runs[kMostRuns];
    size_t run_count, after = 0, compressed = 0, rounded = 0;
    const bool few = stream.runs(packet.sequence, n, runs, 1, &run_count);
    if (few && !run_count) return counts_.bytes_after.add(n), false;
    const size_t kept = to.frames.size();
    uint8_t* const made = to.room();
    uint8_t* at = made;
    for (size_t i = 0, offset = 0; i < count; i++, offset += segment) {
        const size_t bytes = std::min(segment, n - offset);
        segment_headers(at, frame.data, packet, i, offset, i + 1 == count);
        size_t packed = 0;
        bool in_place = false;
        if (stream.runs(packet.sequence + uint32_t(offset), bytes, runs, kMostRuns, &run_count) && run_count) {
            engine_.take(bytes);
            packed = pack(codec_, payload + offset, bytes, runs, run_count, packet.v6, at + packet.payload, bytes - 1);
            in_place = !packed && round_in_place(codec_, payload + offset, bytes, runs, run_count, at + packet.payload);
        }
        if (packed) {
            set_dscp(at, packet.v6, kCompressed);
            compressed++;
        } else {
            if (in_place)
                rounded++;
            else
                std::memcpy(at + packet.payload, payload + offset, bytes);
            packed = bytes;
        }
        after += packed;
        const size_t size = packet.payload + packed;
        finish(at, size, packet);
        to.put(at, size);
        at += size;
    }
    if (!compressed && !rounded) {
        to.frames.resize(kept);
        counts_.bytes_after.add(n);
        return false;
    }
    to.take(size_t(at - made));
    counts_.compressed.add(compressed), counts_.bytes_after.add(after);
    return true;
}

// A peer would take a packet of kCompressed with our magic for a card's. It travels inside one. False where the frame is no such packet.
bool Transmitter::guard(const Frame& frame, const TcpPacket& packet, size_t segment, Batch& to) {
    const uint8_t* const payload = frame.data + packet.payload;
    const size_t n = frame.size - packet.payload;
    if (!segment) {  // uncut, with a checksum that is wrong anyway, or cut by the kernel where nobody looks
        if (frame.offload.gso_type == kGsoNone) return false;
        counts_.dropped.add();
        return true;
    }
    bool any = false;
    for (size_t offset = 0; offset < n && !any; offset += segment) any = has_magic(payload + offset, std::min(segment, n - offset));
    if (!any) return false;
    size_t index = 0;
    for (size_t offset = 0; offset < n; offset += segment)
        put_guarded(frame, packet, offset, std::min(segment, n - offset), offset + segment >= n, &index, to);
    return true;
}

void Transmitter::put_guarded(const Frame& frame, const TcpPacket& packet, size_t offset, size_t n, bool last, size_t* index, Batch& to) {
    const uint8_t* const payload = frame.data + packet.payload + offset;
    const bool wrap = has_magic(payload, n);
    if (wrap && n > 1 && packet.payload + n + kCardHeader > mtu_ + kEthernetBytes) {
        put_guarded(frame, packet, offset, n / 2, false, index, to);
        return put_guarded(frame, packet, offset + n / 2, n - n / 2, last, index, to);
    }
    uint8_t* const at = to.room();
    segment_headers(at, frame.data, packet, (*index)++, offset, last);
    if (wrap)
        counts_.verbatim.add(), n = pack_verbatim(payload, n, kCompressed, at + packet.payload);
    else
        std::memcpy(at + packet.payload, payload, n);
    finish(at, packet.payload + n, packet);
    to.put(at, packet.payload + n);
    to.take(packet.payload + n);
}

}  // namespace paceline::nic
