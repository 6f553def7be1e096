// What one card puts in a TCP segment for another (docs/wire-format.md, "A segment between two cards"): a header of 12 bytes, runs, the
// bytes that stay as they are, and the codec's body of all values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec.h"
#include "message_stream.h"

namespace paceline::nic {

constexpr size_t kCardHeader = 12, kRunBytes = 4, kMostRuns = 255;

inline bool has_magic(const uint8_t* payload, size_t n) { return n >= 2 && payload[0] == 'P' && payload[1] == 'N'; }

// Writes n bytes of payload, cut into runs, as a card sends them; at most `room` bytes. Returns its bytes, 0 where they do not fit.
size_t pack(const Codec& codec, const uint8_t* payload, size_t n, const Run* runs, size_t count, bool v6, uint8_t* to, size_t room);

// The same values in their places in `to`, n bytes, for a segment that would not become smaller. False where that
// changes nothing, or a value has no form; `to` may then be written.
bool round_in_place(const Codec& codec, const uint8_t* payload, size_t n, const Run* runs, size_t count, uint8_t* to);

// A segment without compression, for a host's own packet that looks like a card's. Always 12 bytes more than n.
size_t pack_verbatim(const uint8_t* payload, size_t n, uint8_t dscp, uint8_t* to);

// A card's segment that is sound so far as its header says: lengths add up and the checksum is right.
struct PackedSegment {
    Format format;
    uint8_t k;  // of verbatim the ToS that the packet had
    const uint8_t *runs, *raw, *body;
    size_t count, restored, body_bytes, values;

    // False for anything that no card wrote.
    bool parse(const uint8_t* payload, size_t n);

    // Writes `restored` bytes. False where the body is none that a codec wrote.
    bool unpack(const Codec& codec, bool v6, uint8_t* to) const;
};

// CRC-32C (Castagnoli, RFC 3720) of bytes behind those that gave `crc`, 0 at the start.
uint32_t crc32c(uint32_t crc, const uint8_t* bytes, size_t n);

}  // namespace paceline::nic
