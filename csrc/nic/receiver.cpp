#include "receiver.h"

namespace paceline::nic {
namespace {

constexpr size_t kMostPacket = 65535;

bool same_flow(const uint8_t* a, const TcpPacket& one, const uint8_t* b, const TcpPacket& other) {
    const size_t addresses = one.v6 ? 32 : 8;
    return one.v6 == other.v6 && !std::memcmp(a + one.tcp - addresses, b + other.tcp - addresses, addresses + 4);
}

// Flow label and hop limit.
bool same_v6_rest(const uint8_t* a, const uint8_t* b) { return !((a[15] ^ b[15]) & 15) && !std::memcmp(a + 16, b + 16, 2) && a[21] == b[21]; }

}  // namespace

void Receiver::receive(const Frame& frame, Batch& to) {
    counts_.frames.add();
    TcpPacket packet;
    const bool tcp = packet.parse(frame.data, frame.size);
    const size_t n = tcp ? frame.size - packet.payload : 0;
    const bool ours = tcp && !(frame.offload.flags & kNeedsChecksum) && frame.offload.gso_type == kGsoNone &&
                      !(packet.flags & (kSyn | kRst | kUrg)) && (traffic_class(frame.data, packet.v6) & kDscpMask) == kCompressed &&
                      has_magic(frame.data + packet.payload, n) && ip_checksum_fits(frame.data, packet);
    if (!ours) {
        if (tcp) close_flow(frame.data, packet, to);
        return to.pass(frame);
    }
    PackedSegment segment;
    if (!tcp_checksum_fits(frame.data, frame.size, packet) || !segment.parse(frame.data + packet.payload, n) ||
        packet.payload + segment.restored > kMostPacket + kEthernetBytes)
        return counts_.damaged.add();

    const bool verbatim = segment.format == kVerbatim;
    if (!verbatim) engine_.take(segment.restored);
    Large* large = find(frame.data, packet);
    if (large && (verbatim || !continues(*large, frame.data, packet, segment.restored))) close(size_t(large - large_), to), large = nullptr;
    uint8_t* const payload = large ? large->data + large->size : to.room() + packet.payload;
    if (!segment.unpack(codec_, packet.v6, payload)) return counts_.damaged.add();
    counts_.restored.add(), counts_.bytes_before.add(n), counts_.bytes_after.add(segment.restored);
    if (large) {
        large->size += segment.restored;
        large->count++;
        large->data[packet.tcp + 13] |= packet.flags;
    } else {
        if (open_ == kMostLarge) close(0, to);
        large = &large_[open_++];
        *large = {packet, to.room(), packet.payload + segment.restored, segment.restored, 1, to.frames.size()};
        std::memcpy(large->data, frame.data, packet.payload);
        set_dscp(large->data, packet.v6, verbatim ? segment.k : kMarked);
        to.put(large->data, 0);
        to.take(merge_ ? kMostPacket + kEthernetBytes + 1 : large->size);
    }
    const bool ends = !merge_ || verbatim || packet.flags != kAck || segment.restored < large->segment;
    if (ends) close(size_t(large - large_), to);
}

void Receiver::finish(Batch& to) {
    while (open_) close(open_ - 1, to);
}

void Receiver::close(size_t which, Batch& to) {
    const Large& large = large_[which];
    Frame& frame = to.frames[large.frame];
    if (large.count == 1) {
        nic::finish(large.data, large.size, large.packet);
    } else {
        finish_partly(large.data, large.size, large.packet, &frame.offload);
        frame.offload.gso_type = large.packet.v6 ? kGsoTcp6 : kGsoTcp4;
        frame.offload.gso_size = uint16_t(large.segment);
    }
    frame.size = large.size;
    large_[which] = large_[--open_];
}

void Receiver::close_flow(const uint8_t* frame, const TcpPacket& packet, Batch& to) {
    if (const Large* const large = find(frame, packet)) close(size_t(large - large_), to);
}

Receiver::Large* Receiver::find(const uint8_t* frame, const TcpPacket& packet) {
    for (size_t i = 0; i < open_; i++)
        if (same_flow(large_[i].data, large_[i].packet, frame, packet)) return &large_[i];
    return nullptr;
}

// Whether the frame's payload comes right behind the large packet's, and nothing else of its headers differs.
bool Receiver::continues(const Large& large, const uint8_t* frame, const TcpPacket& packet, size_t bytes) const {
    const uint8_t* const data = large.data;
    const size_t tcp = packet.tcp, so_far = large.size - packet.payload;
    const uint8_t ecn = uint8_t(traffic_class(data, packet.v6) ^ traffic_class(frame, packet.v6)) & uint8_t(~kDscpMask);
    return packet.payload == large.packet.payload && packet.sequence == large.packet.sequence + uint32_t(so_far) &&
           !(packet.flags & ~(kAck | kPsh)) && bytes <= large.segment && large.size + bytes <= kMostPacket + kEthernetBytes && !ecn &&
           !std::memcmp(data, frame, kEthernetBytes) &&
           (packet.v6 ? same_v6_rest(data, frame) : !std::memcmp(data + 20, frame + 20, 4)) &&  // IPv4: fragment flags, TTL
           !std::memcmp(data + tcp + 8, frame + tcp + 8, 5) && !std::memcmp(data + tcp + 14, frame + tcp + 14, 2) &&
           !std::memcmp(data + tcp + 18, frame + tcp + 18, packet.payload - tcp - 18);
}

}  // namespace paceline::nic
