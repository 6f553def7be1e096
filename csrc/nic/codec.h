// The codec of a card: bursts of the values of one segment, in C++ or by an engine's model in a shared library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline::nic {

enum Format : uint8_t { kVerbatim = 0, kFaithful = 1, kScaled = 2 };

// A segment holds no more fp32 values than this.
constexpr size_t kMostValues = 16384;

class Codec {
   public:
    // One thread may encode while another decodes, also with an engine. `engine` is the path of a shared library with paceline_engine_compress and paceline_engine_decompress; empty for C++.
    // Throws std::runtime_error for a library that cannot be used.
    Codec(Format format, int k, const std::string& engine = "");

    Format format() const { return format_; }
    int k() const { return k_; }

    // Writes the body of n values, at most `room` bytes. Returns its bytes; 0 where it does not fit, or a value has no form.
    size_t encode(const float* x, size_t n, bool v6, uint8_t* to, size_t room) const;

    // Replaces n values by what decoding their code gives. False where a value has no form. Always in C++: an engine's decoder belongs to the thread that decodes.
    bool round(float* x, size_t n) const;

    // Reads what a card with any of these codecs wrote. False for anything else.
    bool decode(Format format, int k, const uint8_t* body, size_t bytes, bool v6, float* out, size_t n) const;

   private:
    using Call = int64_t (*)(const uint8_t*, size_t, int, int, int, uint8_t*, size_t);
    using CallBack = int64_t (*)(const uint8_t*, size_t, int, int, int, int, uint8_t*, size_t);

    Format format_;
    int k_;
    Call compress_ = nullptr;
    CallBack decompress_ = nullptr;
};

}  // namespace paceline::nic
