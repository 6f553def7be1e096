#include "measure.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "receiver.h"
#include "transmitter.h"

namespace paceline::nic {
namespace {

constexpr size_t kHeaders = kEthernetBytes + 20 + 32;  // IPv4, and TCP with time stamps
constexpr size_t kLarge = 64000;                       // payload of a packet as TCP hands it down

// A large packet of one endless message of N(0, 0.01) gradients.
struct Source {
    std::vector<uint8_t> frame = std::vector<uint8_t>(kHeaders + kLarge);
    Offload offload;
    TcpPacket packet;

    explicit Source(size_t mtu) {
        uint8_t* const p = frame.data();
        write16(p + 12, 0x0800);
        p[14] = 0x45, p[15] = kMarked, p[23] = 6, p[kEthernetBytes + 20 + 12] = 8 << 4, p[kEthernetBytes + 20 + 13] = kAck;
        write16(p + 16, uint32_t(frame.size() - kEthernetBytes));
        std::mt19937 random(1);
        std::normal_distribution<float> normal(0.0f, 0.01f);
        for (size_t at = kHeaders; at < frame.size(); at += 4) {
            const float value = normal(random);
            std::memcpy(p + at, &value, 4);
        }
        packet.parse(p, frame.size());
        finish_partly(p, frame.size(), packet, &offload);
        offload.gso_type = kGsoTcp4;
        offload.gso_size = uint16_t((mtu - 52) / 4 * 4);
    }

    Frame at(uint32_t sequence) {
        write32(frame.data() + packet.tcp + 4, sequence);
        return {offload, frame.data(), frame.size()};
    }
};

}  // namespace

int measure(const Codec& codec, size_t mtu, double seconds) {
    Statistics statistics;
    Transmitter transmitter(codec, mtu, &statistics.sent);
    Receiver receiver(codec, true, &statistics.received);
    Source source(mtu);
    // The message, announced by a segment of its own.
    uint8_t first[kHeaders + 48] = {};
    std::memcpy(first, source.frame.data(), kHeaders);
    const uint64_t data = uint64_t{1} << 39, preamble[6] = {48 + data, 1, 0, 0, data, 0};
    std::memcpy(first + kHeaders, preamble, 48);
    finish(first, sizeof first, source.packet);
    Batch sent, received;
    transmitter.transmit({{}, first, sizeof first}, sent);

    using Clock = std::chrono::steady_clock;
    double spent[2] = {};
    uint32_t sequence = 48;
    while (spent[0] + spent[1] < seconds) {
        sent.clear(), received.clear();
        const auto start = Clock::now();
        for (int i = 0; i < 16; i++, sequence += uint32_t(kLarge)) transmitter.transmit(source.at(sequence), sent);
        const auto middle = Clock::now();
        for (const Frame& frame : sent.frames) receiver.receive(frame, received);
        receiver.finish(received);
        spent[0] += std::chrono::duration<double>(middle - start).count();
        spent[1] += std::chrono::duration<double>(Clock::now() - middle).count();
    }
    const uint64_t segments[2] = {statistics.sent.compressed.get(), statistics.received.restored.get()};
    const uint64_t bytes[2] = {statistics.sent.bytes_before.get(), statistics.received.bytes_after.get()};
    const char* const names[2] = {"sends", "receives"};
    for (int i = 0; i < 2; i++)
        std::printf("%-8s %9.0f packets/s %6.2f Gb/s of payload\n", names[i], double(segments[i]) / spent[i], double(bytes[i]) * 8e-9 / spent[i]);
    std::printf("payload is %.2f times smaller on the wire\n", double(bytes[0]) / double(statistics.sent.bytes_after.get()));
    return segments[0] == segments[1] ? 0 : 1;
}

}  // namespace paceline::nic
