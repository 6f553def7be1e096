#include "codec.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "../inceptionn_chunk.h"
#include "packet.h"

namespace paceline::nic {
namespace {

constexpr size_t kHead = 32;  // one beat in front of an engine's frame: what tells it that the frame is marked

void write_head(uint8_t* to, bool v6) {
    std::memset(to, 0, kHead);
    write16(to + 12, v6 ? 0x86dd : 0x0800);
    to[14] = v6 ? 0x60 | kMarked >> 4 : 0x45;
    to[15] = v6 ? uint8_t(kMarked << 4) : kMarked;
}

bool all_finite(const float* x, size_t n) {
    bool bad = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

// One block after the other, its exponent in front of its bursts.
uint8_t* encode_blocks(const ScaledFormat& format, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    for (size_t i = 0; i < n && to; i += kBlock) {
        if (end - to < 2) return nullptr;
        to = format.encode(x + i, std::min(kBlock, n - i), to, to + 2, end);
    }
    return to;
}

const uint8_t* decode_blocks(const ScaledFormat& format, const uint8_t* from, const uint8_t* end, float* out, size_t n) {
    for (size_t i = 0; i < n && from; i += kBlock) {
        if (end - from < 2) return nullptr;
        from = format.decode(from + 2, end, from, out + i, std::min(kBlock, n - i), 0);
    }
    return from;
}

}  // namespace

Codec::Codec(Format format, int k, const std::string& engine) : format_(format), k_(k) {
    if (engine.empty()) return;
    void* const library = dlopen(engine.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    compress_ = reinterpret_cast<Call>(dlsym(library, "paceline_engine_compress"));
    decompress_ = reinterpret_cast<CallBack>(dlsym(library, "paceline_engine_decompress"));
    if (!compress_ || !decompress_) throw std::runtime_error(engine + " has no paceline_engine_compress and _decompress");
}

size_t Codec::encode(const float* x, size_t n, bool v6, uint8_t* to, size_t room) const {
    if (n > kMostValues) return 0;
    if (compress_) {
        if (format_ == kScaled && !all_finite(x, n)) return 0;
        static thread_local uint8_t frame[kHead + 4 * kMostValues], out[kHead + 5 * kMostValues];
        write_head(frame, v6);
        std::memcpy(frame + kHead, x, 4 * n);
        const int64_t bytes = compress_(frame, kHead + 4 * n, 1, k_, format_ == kScaled, out, sizeof out);
        if (bytes <= int64_t(kHead) || size_t(bytes) - kHead > room) return 0;
        std::memcpy(to, out + kHead, size_t(bytes) - kHead);
        return size_t(bytes) - kHead;
    }
    uint8_t* const end = format_ == kScaled ? encode_blocks(ScaledFormat(k_), x, n, to, to + room)
                                            : FaithfulFormat(k_).encode(x, n, nullptr, to, to + room);
    return end ? size_t(end - to) : 0;
}

bool Codec::round(float* x, size_t n) const {
    if (n > kMostValues) return false;
    static thread_local uint8_t body[5 * kMostValues];
    uint8_t* const room = body + sizeof body;
    if (format_ == kScaled) {
        const ScaledFormat scaled(k_);
        const uint8_t* const end = encode_blocks(scaled, x, n, body, room);
        return end && decode_blocks(scaled, body, end, x, n) == end;
    }
    const FaithfulFormat faithful(k_);
    const uint8_t* const end = faithful.encode(x, n, nullptr, body, room);
    return end && faithful.decode(body, end, nullptr, x, n, 0) == end;
}

bool Codec::decode(Format format, int k, const uint8_t* body, size_t bytes, bool v6, float* out, size_t n) const {
    if (n > kMostValues || k < 1 || k > (format == kScaled ? ScaledFormat::kMostK : FaithfulFormat::kMostK)) return false;
    if (n == 0) return bytes == 0;
    if (decompress_) {
        static thread_local uint8_t frame[kHead + 5 * kMostValues], restored[kHead + 4 * kMostValues];
        if (bytes > sizeof frame - kHead) return false;
        write_head(frame, v6);
        std::memcpy(frame + kHead, body, bytes);
        const int64_t got = decompress_(frame, kHead + bytes, 1, k, format == kScaled, int(n), restored, sizeof restored);
        if (got != int64_t(kHead + 4 * n)) return false;
        std::memcpy(out, restored + kHead, 4 * n);
        return true;
    }
    const uint8_t* const end = format == kScaled ? decode_blocks(ScaledFormat(k), body, body + bytes, out, n)
                                                 : FaithfulFormat(k).decode(body, body + bytes, nullptr, out, n, 0);
    return end == body + bytes;
}

}  // namespace paceline::nic
