#include "packet.h"

namespace paceline::nic {
namespace {

constexpr size_t kIp = kEthernetBytes, kIp4Bytes = 20, kIp6Bytes = 40, kTcpBytes = 20;

// The sum of big-endian 16-bit words, as a number whose folding is the ones' complement sum. The order of bytes in a word does not
// matter to that sum (RFC 1071), so words are added as the machine reads them, and swapped at the end.
uint64_t sum_of(const uint8_t* p, size_t n) {
    uint64_t sum = 0;
    for (; n >= 32; p += 32, n -= 32) {
        uint32_t word[8];
        std::memcpy(word, p, 32);
        for (uint32_t w : word) sum += w;
    }
    for (; n >= 4; p += 4, n -= 4) {
        uint32_t word;
        std::memcpy(&word, p, 4);
        sum += word;
    }
    uint8_t rest[4] = {};
    for (size_t i = 0; i < n; i++) rest[i] = p[i];
    uint32_t word;
    std::memcpy(&word, rest, 4);
    return sum + word;
}

uint16_t folded(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    uint8_t bytes[2];
    const uint16_t word = uint16_t(sum);
    std::memcpy(bytes, &word, 2);
    return read16(bytes);
}

uint64_t pseudo_header(const uint8_t* frame, bool v6, size_t tcp_bytes) {
    uint8_t rest[8] = {};
    write32(rest, uint32_t(tcp_bytes));
    rest[7] = 6;
    return sum_of(rest, 8) + (v6 ? sum_of(frame + kIp + 8, 32) : sum_of(frame + kIp + 12, 8));
}

void finish_ip(uint8_t* frame, size_t size, bool v6) {
    uint8_t* const ip = frame + kIp;
    if (v6) return write16(ip + 4, uint32_t(size - kIp - kIp6Bytes));
    write16(ip + 2, uint32_t(size - kIp));
    write16(ip + 10, 0);
    write16(ip + 10, uint16_t(~folded(sum_of(ip, kIp4Bytes))));
}

}  // namespace

bool TcpPacket::parse(const uint8_t* frame, size_t size) {
    if (size < kIp + kIp4Bytes + kTcpBytes) return false;
    const uint8_t* const ip = frame + kIp;
    const uint16_t type = read16(frame + 12);
    if (type == 0x0800) {
        const bool fragment = read16(ip + 6) & 0x3fff;  // more to come, or not the first
        if (ip[0] != 0x45 || fragment || ip[9] != 6 || read16(ip + 2) != size - kIp) return false;
        tcp = kIp + kIp4Bytes;
        v6 = false;
    } else if (type == 0x86dd) {
        if (ip[0] >> 4 != 6 || ip[6] != 6 || size < kIp + kIp6Bytes + kTcpBytes || read16(ip + 4) != size - kIp - kIp6Bytes) return false;
        tcp = kIp + kIp6Bytes;
        v6 = true;
    } else {
        return false;
    }
    payload = tcp + (frame[tcp + 12] >> 4) * 4;
    if (payload < tcp + kTcpBytes || payload > size) return false;
    flags = frame[tcp + 13];
    sequence = read32(frame + tcp + 4);
    return true;
}

uint8_t traffic_class(const uint8_t* frame, bool v6) {
    const uint8_t* const ip = frame + kIp;
    return v6 ? uint8_t(ip[0] << 4 | ip[1] >> 4) : ip[1];
}

void set_dscp(uint8_t* frame, bool v6, uint8_t dscp) {
    uint8_t* const ip = frame + kIp;
    const uint8_t value = uint8_t((dscp & kDscpMask) | (traffic_class(frame, v6) & ~kDscpMask));
    if (v6) {
        ip[0] = uint8_t((ip[0] & 0xf0) | value >> 4);
        ip[1] = uint8_t((ip[1] & 0x0f) | value << 4);
    } else {
        ip[1] = value;
        write16(ip + 10, 0);
        write16(ip + 10, uint16_t(~folded(sum_of(ip, kIp4Bytes))));
    }
}

bool ip_checksum_fits(const uint8_t* frame, const TcpPacket& packet) {
    return packet.v6 || folded(sum_of(frame + kIp, kIp4Bytes)) == 0xffff;
}

bool tcp_checksum_fits(const uint8_t* frame, size_t size, const TcpPacket& packet) {
    const size_t bytes = size - packet.tcp;
    return folded(pseudo_header(frame, packet.v6, bytes) + sum_of(frame + packet.tcp, bytes)) == 0xffff;
}

void finish(uint8_t* frame, size_t size, const TcpPacket& packet) {
    finish_ip(frame, size, packet.v6);
    uint8_t* const tcp = frame + packet.tcp;
    const size_t bytes = size - packet.tcp;
    write16(tcp + 16, 0);
    write16(tcp + 16, uint16_t(~folded(pseudo_header(frame, packet.v6, bytes) + sum_of(tcp, bytes))));
}

void finish_partly(uint8_t* frame, size_t size, const TcpPacket& packet, Offload* offload) {
    finish_ip(frame, size, packet.v6);
    write16(frame + packet.tcp + 16, folded(pseudo_header(frame, packet.v6, size - packet.tcp)));
    offload->flags = kNeedsChecksum;
    offload->header_bytes = uint16_t(packet.payload);
    offload->checksum_start = uint16_t(packet.tcp);
    offload->checksum_offset = 16;
}

void segment_headers(uint8_t* to, const uint8_t* frame, const TcpPacket& packet, size_t index, size_t offset, bool last) {
    std::memcpy(to, frame, packet.payload);
    if (!packet.v6) write16(to + kIp + 4, read16(to + kIp + 4) + uint32_t(index));
    write32(to + packet.tcp + 4, packet.sequence + uint32_t(offset));
    uint8_t* const flags = to + packet.tcp + 13;
    if (index) *flags &= uint8_t(~kCwr);
    if (!last) *flags &= uint8_t(~(kFin | kPsh));
}

}  // namespace paceline::nic
