// Verilator's models of both engines behind a C interface: one frame at a time for a card, or many with stalls for the checks.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "Vcompressor.h"
#include "Vdecompressor.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

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

struct Registers {
    int32_t head, k, scaled, values;
};

void set(Vcompressor& model, const Registers& registers) {
    model.head = registers.head & 15;
    model.k = registers.k & 15;
    model.scaled = registers.scaled & 1;
}

void set(Vdecompressor& model, const Registers& registers) {
    model.head = registers.head & 15;
    model.k = registers.k & 15;
    model.scaled = registers.scaled & 1;
    model.values = registers.values & 0xffff;
}

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
    const uint8_t* frames;
    const uint64_t* sizes;
    const Registers* registers;
    uint64_t seed;
    uint8_t* out;
    uint64_t room;
    uint64_t* out_sizes;
    uint8_t* errors;
    uint64_t* times;   // of each frame: cycle of its first and last beat in, first and last beat out; or null
    uint64_t* totals;  // cycles, beats in, beats out; or null
};

template <class Model>
class Engine {
  public:
    Engine() : context_(new VerilatedContext), model_(new Model(context_.get())) {
        model_->rst = 1;
        model_->beats_in___05Fvalid = 0;
        model_->beats_out___05Fready = 0;
        settle();
        edge();
        model_->rst = 0;
    }
    ~Engine() { model_->final(); }

    int64_t run(const Job& job) {
        Draws draws{job.seed};
        Draws* noise = job.seed == 0 ? nullptr : &draws;
        const uint8_t* input = job.frames;
        uint64_t at = 0, written = 0, begun = 0, cycle = 0, quiet = 0, beats_in = 0, beats_out = 0;
        int64_t sent = 0, got = 0;
        bool offered = false, waited = false;
        unsigned gaps = 0, pauses = 0;  // eighths of the cycles in which a side does nothing
        uint32_t held[kBeat / 4 + 1] = {};
        uint8_t held_error = 0;
        // A frame that is too long can be out before its last beat is in: that beat still belongs to this run.
        for (; got < job.count || sent < job.count; ++cycle) {
            if (noise != nullptr && cycle % 64 == 0) {
                constexpr unsigned kShares[] = {0, 2, 4, 7};
                gaps = kShares[draws.next() & 3];
                pauses = kShares[draws.next() & 3];
            }
            if (!offered && sent < job.count && (noise == nullptr || draws.next() % 8 >= gaps)) {
                offered = true;
                uint64_t left = job.sizes[sent] - at;
                set(*model_, at == 0 || noise == nullptr ? job.registers[sent] : any(draws));
                put(model_->beats_in___05Fpayload, input + at, left < kBeat ? left : kBeat, at == 0, left <= kBeat, noise);
            } else if (!offered && noise != nullptr) {
                set(*model_, any(draws));
                put(model_->beats_in___05Fpayload, nullptr, 0, draws.next() & 1, draws.next() & 1, noise);
            }
            model_->beats_in___05Fvalid = offered;
            bool ready = noise == nullptr || draws.next() % 8 >= pauses;
            model_->beats_out___05Fready = ready;
            settle();
            bool accepted = offered && model_->beats_in___05Fready;
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
            if (accepted) {
                if (job.times != nullptr) {
                    if (at == 0) job.times[4 * sent] = cycle;
                    job.times[4 * sent + 1] = cycle;
                }
                at += kBeat;
                if (at >= job.sizes[sent]) {
                    input += job.sizes[sent++];
                    at = 0;
                }
                offered = false;
                ++beats_in;
                quiet = 0;
            }
            edge();
            if (quiet > kPatience) return fail(job, kStuck, cycle, beats_in, beats_out);
        }
        // Nothing may follow the last frame.
        model_->beats_in___05Fvalid = 0;
        model_->beats_out___05Fready = 0;
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
        uint64_t bits = draws.next();
        return {int32_t(bits & 15), int32_t(bits >> 4 & 15), int32_t(bits >> 8 & 1), int32_t(bits >> 16 & 0xffff)};
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
        if (job.sizes[frame] == 0 || job.registers[frame].head < 1 || job.registers[frame].head > 15) return kArguments;
    // Frames follow one another through the same engine; one that failed is made anew.
    thread_local std::unique_ptr<Engine<Model>> engine;
    if (engine == nullptr) engine.reset(new Engine<Model>);
    int64_t result = engine->run(job);
    if (result < 0) engine.reset();
    return result;
}

template <class Model>
int64_t one(const uint8_t* frame, size_t bytes, const Registers& registers, uint8_t* out, size_t room) {
    uint64_t size = bytes, out_size = 0;
    uint8_t error = 0;
    Job job{1, frame, &size, &registers, 0, out, room, &out_size, &error, nullptr, nullptr};
    return run<Model>(job) == 1 && error == 0 ? int64_t(out_size) : -1;
}

}  // namespace

extern "C" {

// A frame is head_beats * 32 bytes of header and the payload; so is the result. Returns its bytes; -1: an error of the engine, an
// empty frame, or too little room.
int64_t paceline_engine_compress(const uint8_t* frame, size_t bytes, int head_beats, int k, int format, uint8_t* out, size_t room) {
    return one<Vcompressor>(frame, bytes, Registers{head_beats, k, format, 0}, out, room);
}

int64_t paceline_engine_decompress(const uint8_t* frame, size_t bytes, int head_beats, int k, int format, int values, uint8_t* out,
                                   size_t room) {
    return one<Vdecompressor>(frame, bytes, Registers{head_beats, k, format, values}, out, room);
}

// Frames back to back. registers: head, k, format, values of each. seed: of stalls on both sides and of noise on wires that do not
// count; 0: neither. Returns how many came out, or why not: -1 stuck, -2 the output breaks the rules of the stream, -3 too little
// room, -4 an empty frame or a number of header beats out of range.
int64_t paceline_engine_run(int decompress, int64_t count, const uint8_t* frames, const uint64_t* sizes, const int32_t* registers,
                            uint64_t seed, uint8_t* out, uint64_t room, uint64_t* out_sizes, uint8_t* errors, uint64_t* times,
                            uint64_t* totals) {
    std::vector<Registers> settings(size_t(count < 0 ? 0 : count));
    if (!settings.empty()) std::memcpy(settings.data(), registers, settings.size() * sizeof(Registers));
    Job job{count, frames, sizes, settings.data(), seed, out, room, out_sizes, errors, times, totals};
    return decompress ? run<Vdecompressor>(job) : run<Vcompressor>(job);
}

}  // extern "C"
