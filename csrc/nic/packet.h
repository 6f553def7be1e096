// Ethernet, IP and TCP headers of a frame in place, their checksums, and the header that TAP and packet sockets put in front of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace paceline::nic {

// struct virtio_net_hdr: what the kernel left for the card to do, in the byte order of the machine.
struct Offload {
    uint8_t flags = 0, gso_type = 0;
    uint16_t header_bytes = 0, gso_size = 0, checksum_start = 0, checksum_offset = 0;
};
static_assert(sizeof(Offload) == 10);
constexpr uint8_t kNeedsChecksum = 1, kGsoNone = 0, kGsoTcp4 = 1, kGsoTcp6 = 4, kGsoEcn = 0x80;

struct Frame {
    Offload offload;
    const uint8_t* data;
    size_t size;
};

constexpr size_t kEthernetBytes = 14, kMostFrame = 65550;  // 14 bytes and the largest IP packet, rounded up
constexpr uint8_t kMarked = 0x28, kCompressed = 0x2c, kDscpMask = 0xfc;  // ToS of what a card compresses, and of what one has
constexpr uint8_t kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16, kUrg = 32, kCwr = 128;

inline uint16_t read16(const uint8_t* p) { return uint16_t(p[0] << 8 | p[1]); }
inline uint32_t read32(const uint8_t* p) { return uint32_t(read16(p)) << 16 | read16(p + 2); }
inline void write16(uint8_t* p, uint32_t v) { p[0] = uint8_t(v >> 8), p[1] = uint8_t(v); }
inline void write32(uint8_t* p, uint32_t v) { write16(p, v >> 16), write16(p + 2, v); }

// Where things lie in an Ethernet frame that is exactly one TCP packet: IPv4 without options and not a fragment, or IPv6 without
// extension headers; lengths agree with the frame's.
struct TcpPacket {
    bool v6;
    uint8_t flags;
    size_t tcp, payload;  // offsets
    uint32_t sequence;

    // False where the frame is anything else.
    bool parse(const uint8_t* frame, size_t size);
};

uint8_t traffic_class(const uint8_t* frame, bool v6);
// Keeps the two ECN bits and, for IPv4, the header checksum right.
void set_dscp(uint8_t* frame, bool v6, uint8_t dscp);

// Whether the IPv4 header's checksum is right; true for IPv6, which has none.
bool ip_checksum_fits(const uint8_t* frame, const TcpPacket& packet);
bool tcp_checksum_fits(const uint8_t* frame, size_t size, const TcpPacket& packet);

// Set the IP lengths and checksums of a frame of `size` bytes; its TCP checksum whole, or for `offload` as the part that the kernel
// completes.
void finish(uint8_t* frame, size_t size, const TcpPacket& packet);
void finish_partly(uint8_t* frame, size_t size, const TcpPacket& packet, Offload* offload);

// One segment of a large packet, as a card cuts it: the headers of segment `index`, whose payload of `bytes` bytes starts `offset` bytes
// into the packet's. Lengths and checksums are left to finish.
void segment_headers(uint8_t* to, const uint8_t* frame, const TcpPacket& packet, size_t index, size_t offset, bool last);

}  // namespace paceline::nic
