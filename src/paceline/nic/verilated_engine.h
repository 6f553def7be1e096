// Drives one of Verilator's models: frames back to back, with stalls on all sides and noise on wires that do not count.

#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "verilated.h"

namespace {

constexpr size_t kBeat = 32;
constexpr uint64_t kPatience = 4000;  // cycles without a beat on either side after which an engine counts as stuck

enum Failure : int64_t { kStuck = -1, kRules = -2, kRoom = -3, kArguments = -4 };

// splitmix64: stalls, and what stands on wires that do not count.
struct Draws {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
};

// Words of an engine's registers for a frame; the first one is the number of header beats.
struct Registers {
    static constexpr size_t kWords = 8;
    uint32_t words[kWords];
};

// Puts registers on an engine's wires; each engine has its own.
template <class Model>
void set(Model& model, const Registers& registers);

// An engine's input streams. Most have one.
template <class Model>
struct Inputs {
    static constexpr int kCount = 1;
    static auto& valid(Model& model, int) { return model.beats_in___05Fvalid; }
    static auto& ready(Model& model, int) { return model.beats_in___05Fready; }
    static auto& beat(Model& model, int) { return model.beats_in___05Fpayload; }
};

// A beat on the wires: 256 bits of data, then bytes (6), first, last.
template <class Wires>
void put(Wires& wires, const uint8_t* data, size_t bytes, bool first, bool last, Draws* draws) {
    uint8_t padded[kBeat] = {};
    if (draws != nullptr)
        for (uint8_t& octet : padded) octet = uint8_t(draws->next());
    if (bytes != 0) std::memcpy(padded, data, bytes);
    for (size_t word = 0; word < kBeat / 4; ++word) std::memcpy(&wires[word], padded + 4 * word, 4);
    wires[kBeat / 4] = uint32_t(bytes) | uint32_t(first) << 6 | uint32_t(last) << 7;
}

struct Job {
    int64_t count;
    const uint8_t* frames[2];   // of each input stream
    const uint64_t* sizes[2];   // of a second stream 0: no frame
    const Registers* registers;
    uint64_t seed;
    uint8_t* out;
    uint64_t room;
    uint64_t* out_sizes;
    uint8_t* errors;
    uint64_t* times;   // of each frame: cycle of its first and last beat in, first and last beat out; or null
    uint64_t* totals;  // cycles, beats in, beats out; or null
};

// One input stream of a job.
struct Source {
    const uint8_t* input;
    const uint64_t* sizes;
    int64_t count;
    int64_t sent = 0;
    uint64_t at = 0;
    bool offered = false;
    unsigned gaps = 0;  // eighths of the cycles in which it does nothing

    bool left() {
        while (sent < count && sizes[sent] == 0) ++sent;
        return sent < count;
    }
    void advance() {
        at += kBeat;
        offered = false;
        if (at < sizes[sent]) return;
        input += sizes[sent++];
        at = 0;
    }
};

template <class Model>
class Engine {
    using Ports = Inputs<Model>;

  public:
    Engine() : context_(new VerilatedContext), model_(new Model(context_.get())) {
        model_->rst = 1;
        quieten();
        settle();
        edge();
        model_->rst = 0;
    }
    ~Engine() { model_->final(); }

    int64_t run(const Job& job) {
        Draws draws{job.seed};
        Draws* noise = job.seed == 0 ? nullptr : &draws;
        Source sources[2] = {{job.frames[0], job.sizes[0], job.count}, {job.frames[1], job.sizes[1], job.count}};
        uint64_t written = 0, begun = 0, cycle = 0, quiet = 0, beats_in = 0, beats_out = 0;
        int64_t got = 0;
        bool waited = false;
        unsigned pauses = 0;  // as a source's gaps
        uint32_t held[kBeat / 4 + 1] = {};
        uint8_t held_error = 0;
        // A frame that is too long can be out before its last beat is in: that beat still belongs to this run.
        for (; got < job.count || left(sources); ++cycle) {
            if (noise != nullptr && cycle % 64 == 0) {
                constexpr unsigned kShares[] = {0, 2, 4, 7};
                for (int k = 0; k < Ports::kCount; ++k) sources[k].gaps = kShares[draws.next() & 3];
                pauses = kShares[draws.next() & 3];
            }
            for (int k = 0; k < Ports::kCount; ++k) offer(sources[k], k, job, noise);
            bool ready = noise == nullptr || draws.next() % 8 >= pauses;
            model_->beats_out___05Fready = ready;
            settle();
            bool accepted[2] = {};
            for (int k = 0; k < Ports::kCount; ++k) accepted[k] = sources[k].offered && Ports::ready(*model_, k);
            bool valid = model_->beats_out___05Fvalid;
            const auto& beat = model_->beats_out___05Fpayload;
            uint8_t error = model_->error;
            if (waited) {
                bool same = valid && error == held_error;
                for (size_t word = 0; word <= kBeat / 4; ++word) same = same && beat[word] == held[word];
                if (!same) return fail(job, kRules, cycle, beats_in, beats_out);
            }
            waited = valid && !ready;
            for (size_t word = 0; word <= kBeat / 4; ++word) held[word] = beat[word];
            held_error = error;
            ++quiet;
            if (valid && ready) {
                if (got == job.count) return fail(job, kRules, cycle, beats_in, beats_out);
                uint32_t size = beat[kBeat / 4] & 63;
                bool first = beat[kBeat / 4] >> 6 & 1, last = beat[kBeat / 4] >> 7 & 1;
                if (first != (begun == 0) || size < 1 || size > kBeat || (size < kBeat && !last))
                    return fail(job, kRules, cycle, beats_in, beats_out);
                if (written + size > job.room) return fail(job, kRoom, cycle, beats_in, beats_out);
                uint8_t octets[kBeat];
                for (size_t word = 0; word < kBeat / 4; ++word) std::memcpy(octets + 4 * word, &beat[word], 4);
                std::memcpy(job.out + written, octets, size);
                if (job.times != nullptr) {
                    if (first) job.times[4 * got + 2] = cycle;
                    job.times[4 * got + 3] = cycle;
                }
                written += size;
                begun += size;
                ++beats_out;
                quiet = 0;
                if (last) {
                    job.out_sizes[got] = begun;
                    job.errors[got++] = error;
                    begun = 0;
                }
            }
            for (int k = 0; k < Ports::kCount; ++k) {
                if (!accepted[k]) continue;
                if (k == 0 && job.times != nullptr) {
                    if (sources[0].at == 0) job.times[4 * sources[0].sent] = cycle;
                    job.times[4 * sources[0].sent + 1] = cycle;
                }
                sources[k].advance();
                ++beats_in;
                quiet = 0;
            }
            edge();
            if (quiet > kPatience) return fail(job, kStuck, cycle, beats_in, beats_out);
        }
        // Nothing may follow the last frame.
        quieten();
        for (int rest = 0; noise != nullptr && rest < 64; ++rest) {
            settle();
            if (model_->beats_out___05Fvalid) return fail(job, kRules, cycle, beats_in, beats_out);
            edge();
        }
        return fail(job, got, cycle, beats_in, beats_out);
    }

  private:
    static int64_t fail(const Job& job, int64_t result, uint64_t cycle, uint64_t beats_in, uint64_t beats_out) {
        if (job.totals != nullptr) {
            job.totals[0] = cycle;
            job.totals[1] = beats_in;
            job.totals[2] = beats_out;
        }
        return result;
    }
    static Registers any(Draws& draws) {
        Registers registers;
        for (uint32_t& word : registers.words) word = uint32_t(draws.next());
        return registers;
    }
    static bool left(Source* sources) {
        bool any = false;
        for (int k = 0; k < Ports::kCount; ++k) any = sources[k].left() || any;
        return any;
    }
    void quieten() {
        for (int k = 0; k < Ports::kCount; ++k) Ports::valid(*model_, k) = 0;
        model_->beats_out___05Fready = 0;
    }
    // The registers count with the first beat of the first stream.
    void offer(Source& source, int k, const Job& job, Draws* noise) {
        auto& wires = Ports::beat(*model_, k);
        if (!source.offered && source.left() && (noise == nullptr || noise->next() % 8 >= source.gaps)) {
            source.offered = true;
            uint64_t left = source.sizes[source.sent] - source.at;
            if (k == 0) set(*model_, source.at == 0 || noise == nullptr ? job.registers[source.sent] : any(*noise));
            put(wires, source.input + source.at, left < kBeat ? left : kBeat, source.at == 0, left <= kBeat, noise);
        } else if (!source.offered && noise != nullptr) {
            if (k == 0) set(*model_, any(*noise));
            bool first = noise->next() & 1, last = noise->next() & 1;
            put(wires, nullptr, 0, first, last, noise);
        }
        Ports::valid(*model_, k) = source.offered;
    }
    void settle() {
        model_->clk = 0;
        model_->eval();
    }
    void edge() {
        model_->clk = 1;
        model_->eval();
    }

    std::unique_ptr<VerilatedContext> context_;
    std::unique_ptr<Model> model_;
};

template <class Model>
int64_t run(const Job& job) {
    if (job.count < 0) return kArguments;
    for (int64_t frame = 0; frame < job.count; ++frame)
        if (job.sizes[0][frame] == 0 || job.registers[frame].words[0] - 1 > 14) return kArguments;
    // Frames follow one another through the same engine; one that failed is made anew.
    thread_local std::unique_ptr<Engine<Model>> engine;
    if (engine == nullptr) engine.reset(new Engine<Model>);
    int64_t result = engine->run(job);
    if (result < 0) engine.reset();
    return result;
}

}  // namespace
