#include "segment.h"

#include <array>
#include <cstring>

namespace paceline::nic {
namespace {

// Eight tables: a step takes eight bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        t[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (size_t j = 1; j < 8; j++) t[j][i] = t[j - 1][i] >> 8 ^ t[0][t[j - 1][i] & 255];
    return t;
}

constexpr auto kTables = make_tables();

uint32_t little32(const uint8_t* p) { return uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24; }
uint16_t little16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
void put16(uint8_t* p, size_t v) { p[0] = uint8_t(v), p[1] = uint8_t(v >> 8); }

uint32_t checksum(const uint8_t* segment, size_t n) { return crc32c(crc32c(0, segment, 8), segment + kCardHeader, n - kCardHeader); }

void write_header(uint8_t* to, Format format, int k, size_t count, size_t restored) {
    const uint8_t head[6] = {'P', 'N', format, uint8_t(k), uint8_t(count), 0};
    std::memcpy(to, head, 6);
    put16(to + 6, restored);
}

void write_checksum(uint8_t* segment, size_t n) {
    const uint32_t sum = checksum(segment, n);
    put16(segment + 8, sum & 0xffff);
    put16(segment + 10, sum >> 16);
}

}  // namespace

uint32_t crc32c(uint32_t crc, const uint8_t* p, size_t n) {
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        const uint32_t a = little32(p) ^ crc, b = little32(p + 4);
        crc = kTables[7][a & 255] ^ kTables[6][a >> 8 & 255] ^ kTables[5][a >> 16 & 255] ^ kTables[4][a >> 24] ^ kTables[3][b & 255] ^
              kTables[2][b >> 8 & 255] ^ kTables[1][b >> 16 & 255] ^ kTables[0][b >> 24];
    }
    for (; n; p++, n--) crc = crc >> 8 ^ kTables[0][(crc ^ *p) & 255];
    return ~crc;
}

bool round_in_place(const Codec& codec, const uint8_t* payload, size_t n, const Run* runs, size_t count, uint8_t* to) {
    static thread_local float values[kMostValues];
    size_t floats = 0, at = 0;
    for (size_t i = 0; i < count; i++) {
        if (floats + runs[i].values > kMostValues) return false;
        std::memcpy(values + floats, payload + (at += runs[i].raw), 4 * size_t{runs[i].values});
        at += 4 * size_t{runs[i].values}, floats += runs[i].values;
    }
    if (!codec.round(values, floats)) return false;
    std::memcpy(to, payload, n);
    const float* value = values;
    uint8_t* place = to;
    for (size_t i = 0; i < count; value += runs[i++].values) {
        std::memcpy(place += runs[i].raw, value, 4 * size_t{runs[i].values});
        place += 4 * size_t{runs[i].values};
    }
    return std::memcmp(to, payload, n) != 0;
}

size_t pack(const Codec& codec, const uint8_t* payload, size_t n, const Run* runs, size_t count, bool v6, uint8_t* to, size_t room) {
    static thread_local float values[kMostValues];
    size_t raw = 0, floats = 0;
    for (size_t i = 0; i < count; i++) raw += runs[i].raw, floats += runs[i].values;
    const size_t body = kCardHeader + kRunBytes * count + raw;
    if (count > kMostRuns || floats > kMostValues || !floats || body >= room) return 0;
    uint8_t *at = to + kCardHeader, *rest = at + kRunBytes * count;
    size_t filled = 0;
    for (size_t i = 0; i < count; i++, at += kRunBytes) {
        put16(at, runs[i].raw);
        put16(at + 2, runs[i].values);
        std::memcpy(rest, payload, runs[i].raw);
        std::memcpy(values + filled, payload + runs[i].raw, 4 * size_t{runs[i].values});
        rest += runs[i].raw, filled += runs[i].values;
        payload += runs[i].raw + 4 * size_t{runs[i].values};
    }
    const size_t bytes = codec.encode(values, floats, v6, rest, room - body);
    if (!bytes) return 0;
    write_header(to, codec.format(), codec.k(), count, n);
    write_checksum(to, body + bytes);
    return body + bytes;
}

size_t pack_verbatim(const uint8_t* payload, size_t n, uint8_t dscp, uint8_t* to) {
    write_header(to, kVerbatim, dscp & 0xfc, 0, n);
    std::memcpy(to + kCardHeader, payload, n);
    write_checksum(to, kCardHeader + n);
    return kCardHeader + n;
}

bool PackedSegment::parse(const uint8_t* payload, size_t n) {
    if (n < kCardHeader || !has_magic(payload, n) || payload[2] > kScaled || payload[5]) return false;
    format = Format(payload[2]), k = payload[3], count = payload[4], restored = little16(payload + 6);
    if (!restored || n < kCardHeader + kRunBytes * count) return false;
    runs = payload + kCardHeader;
    raw = runs + kRunBytes * count;
    size_t raw_bytes = 0;
    values = 0;
    for (size_t i = 0; i < count; i++) {
        raw_bytes += little16(runs + kRunBytes * i);
        values += little16(runs + kRunBytes * i + 2);
    }
    if (format == kVerbatim) {
        if (count || (k & 3)) return false;
        raw_bytes = restored;
    }
    const size_t left = n - kCardHeader - kRunBytes * count;
    if (raw_bytes > left || raw_bytes + 4 * values != restored || values > kMostValues) return false;
    if (format == kVerbatim ? left != restored : !values) return false;
    body = raw + raw_bytes;
    body_bytes = left - raw_bytes;
    return checksum(payload, n) == little32(payload + 8);
}

bool PackedSegment::unpack(const Codec& codec, bool v6, uint8_t* to) const {
    if (format == kVerbatim) {
        std::memcpy(to, raw, restored);
        return true;
    }
    static thread_local float decoded[kMostValues];
    if (!codec.decode(format, k, body, body_bytes, v6, decoded, values)) return false;
    const uint8_t* from = raw;
    const float* value = decoded;
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = little16(runs + kRunBytes * i), floats = little16(runs + kRunBytes * i + 2);
        std::memcpy(to, from, bytes);
        std::memcpy(to + bytes, value, 4 * floats);
        to += bytes + 4 * floats, from += bytes, value += floats;
    }
    return true;
}

}  // namespace paceline::nic
