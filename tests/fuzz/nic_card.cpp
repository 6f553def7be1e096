// Random, damaged and cut packets through a card, both ways: `make fuzz-nic` builds it with AddressSanitizer and
// UndefinedBehaviorSanitizer.
//
//     nic_card_fuzz PACKETS [SEED]
//
// Frames lie in memory of exactly their size. The program ends at the first access outside it, at undefined behaviour, and where what
// the card makes is no frame, or an undamaged frame comes back with another length or other bytes than it may.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "nic/receiver.h"
#include "nic/transmitter.h"

using namespace paceline::nic;

namespace {

struct Random {
    uint64_t state;

    uint64_t next() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state * 0x2545f4914f6cdd1d;
    }
    size_t below(size_t n) { return size_t((next() >> 16) % n); }
    bool one_in(size_t n) { return below(n) == 0; }
};

struct Sample {
    Offload offload;
    std::vector<uint8_t> bytes;
};

// The next packet of a flow of messages: some of gradients, some of other bytes, some large, some in the wrong place.
struct Flow {
    bool v6;
    uint16_t port;
    uint32_t sequence;
    std::vector<uint8_t> stream;
    size_t at = 0;

    void write_message(Random& r) {
        const uint64_t data = r.one_in(4) ? r.below(64) : r.one_in(3) ? r.below(40000) : 4 * r.below(800), opcode = r.one_in(4) ? 2 + r.below(2) : 1;
        const uint64_t field[6] = {48 + (opcode < 2 ? data : 0), opcode, r.next(), 0, data, 0};
        const auto* const head = reinterpret_cast<const uint8_t*>(field);
        stream.insert(stream.end(), head, head + 48);
        const float scale = r.one_in(3) ? 3.0f : r.one_in(3) ? 0.0f : 0.02f;
        for (uint64_t i = 0; opcode < 2 && i < data; i += 4) {
            const float value = scale * (float(r.below(2001)) / 1000.0f - 1.0f);
            uint8_t word[4];
            std::memcpy(word, &value, 4);
            stream.insert(stream.end(), word, word + (data - i < 4 ? data - i : 4));
        }
    }

    Sample packet(Random& r) {
        while (stream.size() - at < 20000) write_message(r);
        if (at > 200000) stream.erase(stream.begin(), stream.begin() + long(at)), sequence += uint32_t(at), at = 0;
        const bool large = r.one_in(3);
        const size_t n = large ? 1 + r.below(20000) : 1 + r.below(1448), options = r.one_in(4) ? 4 * r.below(11) : 12;
        size_t from = at;
        if (r.one_in(8)) from = r.below(at + 1);
        else if (r.one_in(64)) from = at + r.below(3000);
        else at += n;
        while (stream.size() < from + n) write_message(r);
        const size_t tcp = kEthernetBytes + (v6 ? 40 : 20), payload = tcp + 20 + options;
        Sample s{{}, std::vector<uint8_t>(payload + n)};
        uint8_t* const p = s.bytes.data();
        write16(p + 12, v6 ? 0x86dd : 0x0800);
        p[14] = v6 ? 0x60 : 0x45;
        p[v6 ? 20 : 23] = 6;
        p[tcp - 1] = v6, p[tcp - 5] = 9;
        write16(p + tcp, port);
        write16(p + tcp + 2, 29500);
        write32(p + tcp + 4, sequence + uint32_t(from));
        p[tcp + 12] = uint8_t((20 + options) / 4 << 4);
        p[tcp + 13] = uint8_t(kAck | (r.one_in(8) ? kPsh : 0) | (r.one_in(200) ? kFin : 0));
        std::memcpy(p + payload, stream.data() + from, n);
        uint8_t dscp = kMarked;
        if (r.one_in(10)) dscp = 0;
        if (r.one_in(10)) {  // a card's own?
            dscp = kCompressed;
            for (size_t i = 0; i + 2 < n; i += 1 + r.below(500)) p[payload + i] = 'P', p[payload + i + 1] = 'N';
        }
        if (dscp != kMarked && from == at - n) at = from;  // the card does not follow it: it comes again, marked
        TcpPacket packet;
        write16(p + (v6 ? 18 : 16), uint32_t(s.bytes.size() - (v6 ? 54 : 14)));
        if (!packet.parse(p, s.bytes.size())) std::abort();
        set_dscp(p, v6, dscp);
        if (large && !r.one_in(4)) {
            s.offload.gso_type = v6 ? kGsoTcp6 : kGsoTcp4;
            s.offload.gso_size = uint16_t(r.one_in(4) ? 1 + r.below(9000) : 1448);
            finish_partly(p, s.bytes.size(), packet, &s.offload);
        } else {
            finish(p, s.bytes.size(), packet);
        }
        return s;
    }
};

void damage(Sample& s, Random& r) {
    auto& bytes = s.bytes;
    for (size_t i = 1 + r.below(6); i && !bytes.empty(); i--) {
        const size_t at = r.one_in(2) ? r.below(bytes.size()) : r.below(std::min<size_t>(bytes.size(), 100));
        if (r.one_in(2)) bytes[at] ^= uint8_t(1u << r.below(8));
        else bytes[at] = uint8_t(r.next());
    }
    if (r.one_in(4)) bytes.resize(r.below(bytes.size() + 1));
    if (r.one_in(16)) bytes.resize(std::min(bytes.size() + r.below(300), kMostFrame), uint8_t(r.next()));
    if (r.one_in(3)) {  // headers that agree again, so that the damage is read further in
        TcpPacket packet;
        if (bytes.size() > 60) {
            const bool v6 = read16(bytes.data() + 12) == 0x86dd;
            if (bytes.size() <= 65549) write16(bytes.data() + (v6 ? 18 : 16), uint32_t(bytes.size() - (v6 ? 54 : 14)));
            if (packet.parse(bytes.data(), bytes.size())) finish(bytes.data(), bytes.size(), packet);
        }
    }
    if (r.one_in(16)) {
        uint8_t random[sizeof(Offload)];
        for (uint8_t& byte : random) byte = uint8_t(r.next());
        std::memcpy(&s.offload, random, sizeof random);
    }
}

// A card's segment whose checksums are right, over a header and a body that are damaged.
void damage_inside(Sample& s, Random& r) {
    TcpPacket packet;
    uint8_t* const p = s.bytes.data();
    if (!packet.parse(p, s.bytes.size()) || s.bytes.size() < packet.payload + kCardHeader) return;
    uint8_t* const payload = p + packet.payload;
    const size_t n = s.bytes.size() - packet.payload;
    for (size_t i = 1 + r.below(4); i; i--) payload[r.one_in(2) ? 2 + r.below(std::min<size_t>(n, 40) - 2) : 2 + r.below(n - 2)] ^= uint8_t(1u << r.below(8));
    const uint32_t sum = crc32c(crc32c(0, payload, 8), payload + kCardHeader, n - kCardHeader);
    for (int i = 0; i < 4; i++) payload[8 + i] = uint8_t(sum >> 8 * i);
    finish(p, s.bytes.size(), packet);
}

uint64_t g_seen = 0;

void check(const Frame& frame) {
    if (frame.size > kMostFrame) std::fprintf(stderr, "a frame of %zu bytes\n", frame.size), std::abort();
    for (size_t i = 0; i < frame.size; i++) g_seen += frame.data[i];  // all of it must be there
}

// Bytes where they end with their memory.
struct Exact {
    std::unique_ptr<uint8_t[]> memory;
    Frame frame;

    explicit Exact(const Sample& s) : memory(new uint8_t[s.bytes.size()]), frame{s.offload, memory.get(), s.bytes.size()} {
        if (!s.bytes.empty()) std::memcpy(memory.get(), s.bytes.data(), s.bytes.size());
    }
};

[[noreturn]] void complain(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

struct Pair {
    Codec codec;
    Statistics statistics;
    Transmitter transmitter{codec, 1500, &statistics.sent};
    Receiver receiver, merging;
    Batch sent{Batch::kMostOfOne}, received{Batch::kMostOfOne}, merged{3 * Batch::kMostOfOne};
    std::vector<std::unique_ptr<Exact>> kept;

    Pair(Format format, int k) : codec(format, k), receiver(codec, false, &statistics.received), merging(codec, true, &statistics.received) {}

    void receive(const Sample& sample, size_t* packets) {
        const Exact exact(sample);
        received.clear();
        receiver.receive(exact.frame, received);
        receiver.finish(received);
        for (const Frame& frame : received.frames) check(frame);
        kept.push_back(std::make_unique<Exact>(sample));
        merging.receive(kept.back()->frame, merged);
        if (merged.full() || kept.size() > 40) {
            merging.finish(merged);
            for (const Frame& frame : merged.frames) check(frame);
            merged.clear(), kept.clear();
        }
        *packets += 1;
    }

    void transmit(const Sample& sample, bool whole, Random& r, size_t* packets) {
        const Exact exact(sample);
        sent.clear();
        transmitter.transmit(exact.frame, sent);
        *packets += 1;
        size_t restored = 0;
        for (const Frame& frame : sent.frames) {
            check(frame);
            Sample on_wire{frame.offload, {frame.data, frame.data + frame.size}};
            receive(on_wire, packets);
            if (whole)
                for (const Frame& back : received.frames) restored += back.size;
            if (r.one_in(2)) continue;
            Sample damaged = on_wire;
            if (r.one_in(2)) damage_inside(damaged, r);
            else damage(damaged, r);
            receive(damaged, packets);
        }
        if (!whole) return;
        TcpPacket packet;
        if (!packet.parse(sample.bytes.data(), sample.bytes.size())) complain("a sample that is no packet");
        if (restored < sample.bytes.size() && statistics.sent.dropped.get() == 0) complain("bytes are lost");
    }
};

}  // namespace

int main(int count, char** words) {
    const size_t packets = count > 1 ? std::strtoull(words[1], nullptr, 10) : 100000;
    Random r{count > 2 ? std::strtoull(words[2], nullptr, 10) * 2 + 1 : 1};
    auto faithful = std::make_unique<Pair>(kFaithful, 10), scaled = std::make_unique<Pair>(kScaled, 6);
    std::vector<Flow> flows;
    const auto began = std::chrono::steady_clock::now();
    size_t done = 0;
    while (done < packets) {
        if (flows.size() < 8 || r.one_in(400)) {
            Flow flow{r.one_in(2), uint16_t(r.next()), uint32_t(r.next()), {}};
            if (flows.size() < 8) flows.push_back(flow);
            else flows[r.below(8)] = flow;
        }
        const size_t which = r.below(8 + 1);
        Pair& pair = which % 2 ? *faithful : *scaled;
        if (which >= flows.size()) {
            Sample noise{{}, std::vector<uint8_t>(r.below(200))};
            for (uint8_t& byte : noise.bytes) byte = uint8_t(r.next());
            pair.transmit(noise, false, r, &done);
            pair.receive(noise, &done);
            continue;
        }
        Sample sample = flows[which].packet(r);
        pair.transmit(sample, true, r, &done);
        if (!r.one_in(4)) continue;
        damage(sample, r);  // of addresses and sequence numbers too: flows end, and others begin
        pair.transmit(sample, false, r, &done);
        if (r.one_in(2)) pair.receive(sample, &done);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    size_t compressed = 0, restored = 0, damaged = 0, left_alone = 0;
    for (const Pair* pair : {faithful.get(), scaled.get()}) {
        compressed += pair->statistics.sent.compressed.get(), restored += pair->statistics.received.restored.get();
        damaged += pair->statistics.received.damaged.get(), left_alone += pair->statistics.sent.left_alone.get();
    }
    std::printf("%zu packets in %.0f s: %zu compressed, %zu restored, %zu damaged, %zu flows left alone; no fault\n", done, seconds, compressed,
                restored, damaged, left_alone);
    return g_seen == 0;
}
