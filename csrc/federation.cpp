// The simulation of sites that share devices (src/paceline/market/federation/reference_simulation.py is the specification).
//
// Jobs of one kind differ in nothing that decides whether they fit, so only the first of each kind is tried: a pass over all that
// waits costs as much as there are kinds, however long the queues are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "bind.h"

namespace paceline {
namespace {

using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutDoubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutLongs = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kCloud = -1;
enum What : int64_t { kEnd, kEviction, kArrival, kDeadline };

struct Event {
    double moment;
    int64_t what, job, run;
    bool operator>(const Event& other) const {
        if (moment != other.moment) return moment > other.moment;
        if (what != other.what) return what > other.what;
        if (job != other.job) return job > other.job;
        return run > other.run;
    }
};

struct Run {
    int64_t job, pool;
    double start, end;
};

struct Held {
    int64_t pool = 0, run = -1;  // run -1: the job does not run
    double works = 0;            // when its work begins
    bool leaving = false;
};

struct Head {  // the first job of a kind
    double rank;
    int64_t borrows;
    double past;
    int64_t job, kind;
    bool operator>(const Head& other) const {
        if (rank != other.rank) return rank > other.rank;
        if (borrows != other.borrows) return borrows > other.borrows;
        if (past != other.past) return past > other.past;
        return job != other.job ? job > other.job : kind > other.kind;
    }
};

class Simulation {
  public:
    // Of jobs and pools.
    const double *arrival, *duration, *patience, *speed, *believed, *delay, *cloud_speed;
    const int64_t *devices, *site, *kind, *kind_site, *capacity, *pool_site;
    size_t jobs, kinds, pools, sites;
    // Of the rules.
    std::vector<int64_t> lends, borrows;
    const double* notice;
    bool by_credit, home_first;
    double checkpoint, save, restart;
    uint64_t members;
    // What became of the jobs.
    double *first_start, *end;
    int64_t* restarts;
    std::vector<Run> runs;

    void begin() {
        free_.resize(pools);
        for (size_t pool = 0; pool < pools; ++pool)
            free_[pool] = pool_site[pool] < 0 || member(pool_site[pool]) ? capacity[pool] : 0;
        guests_.assign(pools, 0);
        coming_.assign(pools, 0);
        reserved_.assign(pools, 0);
        lent_.assign(sites, 0);
        borrowed_.assign(sites, 0);
        credit_.assign(sites, 0.0);
        past_credit_.assign(sites, 0.0);
        every_kind_.resize(kinds);
        std::iota(every_kind_.begin(), every_kind_.end(), 0);
        remaining_.assign(duration, duration + jobs);
        queues_.resize(kinds);
        held_.resize(jobs);
        here_.resize(pools);
        std::fill(first_start, first_start + jobs, kNaN);
        std::fill(end, end + jobs, kNaN);
        std::fill(restarts, restarts + jobs, 0);
        next_ = following(0);
    }

    // All that happens before a moment.
    void run_until(double until) {
        while (next_ < jobs || !events_.empty()) {
            const double now = std::min(events_.empty() ? kNever : events_.top().moment, next_ < jobs ? arrival[next_] : kNever);
            if (now >= until) return;
            bool freed = false;
            while (!events_.empty() && events_.top().moment == now && events_.top().what < kArrival) {
                const Event event = events_.top();
                events_.pop();
                freed |= leave(now, event);
            }
            arrive(now, freed);
            while (!events_.empty() && events_.top().moment == now && events_.top().what == kDeadline) {
                const int64_t job = events_.top().job;
                events_.pop();
                if (overflow(now, job)) dispatch(now, every_kind_);  // devices that were kept for it are free for others
            }
        }
    }

    bool done() const { return next_ >= jobs && events_.empty(); }

    // Other limits from a moment on, and what starts by them.
    void limit(double now, const int64_t* most_lent, const int64_t* most_borrowed) {
        lends.assign(most_lent, most_lent + sites);
        borrows.assign(most_borrowed, most_borrowed + sites);
        dispatch(now, every_kind_);
    }

    // Start a job that waits in a pool that has room, whatever the limits are. Returns its run.
    int64_t start(double now, int64_t job, int64_t pool) {
        if (job < 0 || job >= static_cast<int64_t>(jobs) || pool < 0 || pool >= static_cast<int64_t>(pools))
            throw std::invalid_argument("no such job or pool");
        if (!queues_[kind[job]].count(job)) throw std::invalid_argument("the job does not wait");
        if (free_[pool] < devices[job] || speed[kind[job] * pools + pool] <= 0) throw std::invalid_argument("the job does not fit there");
        hold(now, job, pool);
        return static_cast<int64_t>(runs.size()) - 1;
    }

    const std::vector<double>& remaining() const { return remaining_; }

    // Runs that have not ended: pool, devices and end as believed.
    void running(std::vector<int64_t>& at, std::vector<int64_t>& count, std::vector<double>& ends) const {
        for (size_t job = 0; job < jobs; ++job) {
            const Held& held = held_[job];
            if (held.run < 0) continue;
            at.push_back(held.pool);
            count.push_back(devices[job]);
            ends.push_back(held.works + remaining_[job] / believed[kind[job] * pools + held.pool]);
        }
    }

    std::vector<int64_t> waiting() const {
        std::vector<int64_t> all;
        for (const auto& queue : queues_) all.insert(all.end(), queue.begin(), queue.end());
        std::sort(all.begin(), all.end());
        return all;
    }

    const std::vector<int64_t>& free() const { return free_; }
    const std::vector<int64_t>& lent() const { return lent_; }
    const std::vector<int64_t>& borrowed() const { return borrowed_; }

  private:
    size_t next_ = 0;
    std::vector<int64_t> free_, guests_, coming_, lent_, borrowed_;
    std::vector<int64_t> every_kind_, arrived_, first_of_kind_;
    std::vector<double> credit_, past_credit_, remaining_;
    double credit_at_ = 0;
    std::vector<std::set<int64_t>> queues_;
    std::vector<Held> held_;
    std::vector<std::vector<int64_t>> here_;  // guests of each pool, in the order in which they came
    std::vector<char> reserved_;
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
    std::vector<Head> heads_;

    bool member(int64_t owner) const { return members >> owner & 1; }

    size_t following(size_t job) const {
        while (job < jobs && !member(site[job])) ++job;
        return job;
    }

    bool guest(size_t pool, int64_t home) const { return pool_site[pool] >= 0 && pool_site[pool] != home; }

    // Queue all that arrives at a moment, then start jobs, so that an owner's job comes before a guest.
    void arrive(double now, bool freed) {
        arrived_.clear();
        first_of_kind_.clear();
        for (; next_ < jobs && arrival[next_] == now; next_ = following(next_ + 1)) {
            auto& queue = queues_[kind[next_]];
            if (queue.empty()) first_of_kind_.push_back(kind[next_]);  // else the job before it does not fit either
            queue.insert(static_cast<int64_t>(next_));
            arrived_.push_back(static_cast<int64_t>(next_));
        }
        if (freed || !first_of_kind_.empty()) dispatch(now, freed ? every_kind_ : first_of_kind_);
        for (const int64_t job : arrived_)
            if (std::isnan(first_start[job]) && patience[job] < kNever) events_.push({now + patience[job], kDeadline, job, 0});
    }

    bool overflow(double now, int64_t job) {
        if (!std::isnan(first_start[job])) return false;
        queues_[kind[job]].erase(job);
        first_start[job] = now;
        end[job] = now + remaining_[job] / cloud_speed[kind[job]];
        runs.push_back({job, kCloud, now, end[job]});
        return true;
    }

    bool leave(double now, const Event& event) {
        const int64_t job = event.job;
        Held& held = held_[job];
        if (held.run != event.run) return false;
        const size_t pool = static_cast<size_t>(held.pool);
        const int64_t home = site[job], lender = pool_site[pool];
        free_[pool] += devices[job];
        runs[event.run].end = now;
        if (guest(pool, home)) {
            settle_credit(now);
            lent_[lender] -= devices[job];
            borrowed_[home] -= devices[job];
            (held.leaving ? coming_ : guests_)[pool] -= devices[job];
            auto& here = here_[pool];
            here.erase(std::find(here.begin(), here.end(), job));
        }
        const double works = held.works;
        held = Held{};
        if (event.what == kEnd) {
            end[job] = now;
            return true;
        }
        remaining_[job] -= kept(now, works, lender) * speed[kind[job] * pools + pool];
        ++restarts[job];
        queues_[kind[job]].insert(job);
        return true;
    }

    double kept(double now, double works, int64_t lender) const {
        const double done = std::max(now - works, 0.0);
        if (notice[lender] >= save) return std::max(done - save, 0.0);
        return std::floor(done / checkpoint) * checkpoint;
    }

    void settle_credit(double now) {
        const double passed = now - credit_at_;
        if (passed == 0) return;
        for (size_t owner = 0; owner < sites; ++owner) {
            const double change = static_cast<double>(lent_[owner] - borrowed_[owner]) * passed;
            past_credit_[owner] += (credit_[owner] + 0.5 * change) * passed;
            credit_[owner] += change;
        }
        credit_at_ = now;
    }

    // If two sites have equal credit, the site that borrows less now is first, then the site that had more credit over time.
    Head head(int64_t each) const {
        const int64_t owner = kind_site[each], job = *queues_[each].begin();
        if (!by_credit) return {0.0, 0, 0.0, job, each};
        return {-credit_[owner], borrowed_[owner] - lent_[owner], -past_credit_[owner], job, each};
    }

    void push_head(const Head& head) {
        heads_.push_back(head);
        std::push_heap(heads_.begin(), heads_.end(), std::greater<Head>());
    }

    // Those kinds that have a job that waits, in order; a kind whose first job started comes again with its next.
    template <class Start>
    void in_order(double now, const std::vector<int64_t>& able, Start start) {
        settle_credit(now);
        heads_.clear();
        for (const int64_t each : able)
            if (!queues_[each].empty()) heads_.push_back(head(each));
        std::make_heap(heads_.begin(), heads_.end(), std::greater<Head>());
        while (!heads_.empty()) {
            std::pop_heap(heads_.begin(), heads_.end(), std::greater<Head>());
            const Head first = heads_.back();
            heads_.pop_back();
            const Head current = head(first.kind);
            if (current > first)  // its site has borrowed since
                push_head(current);
            else if (start(first.kind) && !queues_[first.kind].empty())
                push_head(head(first.kind));
        }
    }

    void dispatch(double now, const std::vector<int64_t>& able) {
        std::fill(reserved_.begin(), reserved_.end(), 0);
        if (home_first) {
            in_order(now, able, [&](int64_t each) { return start(now, each, true); });
            each_wanted([&](size_t pool, int64_t) { reserved_[pool] = 1; });
        }
        in_order(now, able, [&](int64_t each) { return start(now, each, false); });
        if (home_first)  // after jobs have started elsewhere: nobody leaves for one that need not wait
            each_wanted([&](size_t pool, int64_t devices) { tell(now, pool, devices - free_[pool] - coming_[pool]); });
    }

    bool start(double now, int64_t each, bool at_home) {
        const int64_t job = *queues_[each].begin(), home = kind_site[each], count = devices[job];
        const double extra = restarts[job] ? restart : 0.0;
        double best_end = kNever;
        bool best_guest = false;
        double best_credit = 0;
        int64_t best = -1;
        for (size_t pool = 0; pool < pools; ++pool) {
            if (free_[pool] < count || speed[each * pools + pool] <= 0) continue;
            const bool is_guest = guest(pool, home);
            if (is_guest && (at_home || reserved_[pool] || lent_[pool_site[pool]] + count > lends[pool_site[pool]] ||
                             borrowed_[home] + count > borrows[home]))
                continue;
            const double ends = now + (delay[each * pools + pool] + extra + remaining_[job] / believed[each * pools + pool]);
            const double credit = is_guest ? credit_[pool_site[pool]] : 0.0;
            const auto order = [&](size_t place, double end, bool guest, double lent) { return std::make_tuple(end, guest, -free_[place], lent); };
            if (best < 0 || order(pool, ends, is_guest, credit) < order(best, best_end, best_guest, best_credit)) {
                best_end = ends;
                best_guest = is_guest;
                best_credit = credit;
                best = static_cast<int64_t>(pool);
            }
        }
        if (best < 0) return false;
        hold(now, job, best);
        return true;
    }

    // A job that waits begins to run in a pool.
    void hold(double now, int64_t job, int64_t pool) {
        const int64_t each = kind[job], home = site[job], count = devices[job];
        const double extra = restarts[job] ? restart : 0.0, wait = delay[each * pools + pool] + extra;
        queues_[each].erase(job);
        free_[pool] -= count;
        if (guest(pool, home)) {
            settle_credit(now);
            lent_[pool_site[pool]] += count;
            borrowed_[home] += count;
            guests_[pool] += count;
            here_[pool].push_back(job);
        }
        if (std::isnan(first_start[job])) first_start[job] = now;
        const int64_t number = static_cast<int64_t>(runs.size());
        runs.push_back({job, pool, now, kNaN});
        held_[job].pool = pool;
        held_[job].run = number;
        held_[job].works = now + wait;
        events_.push({now + (wait + remaining_[job] / speed[each * pools + pool]), kEnd, job, number});
    }

    // Pools with guests where own jobs wait that would fit if guests left, and the devices of those jobs.
    template <class Act>
    void each_wanted(Act act) {
        for (size_t pool = 0; pool < pools; ++pool) {
            const int64_t lender = pool_site[pool];
            if (lender < 0 || notice[lender] == kNever || !(guests_[pool] || coming_[pool])) continue;
            heads_.clear();
            for (size_t each = 0; each < kinds; ++each)
                if (!queues_[each].empty() && kind_site[each] == lender && speed[each * pools + pool] > 0)
                    heads_.push_back({0.0, 0, 0.0, *queues_[each].begin(), static_cast<int64_t>(each)});
            std::sort(heads_.begin(), heads_.end(), [](const Head& a, const Head& b) { return b > a; });
            int64_t wanted = 0;
            const int64_t there = free_[pool] + coming_[pool] + guests_[pool];
            for (const Head& head : heads_)
                if (wanted + devices[head.job] <= there) wanted += devices[head.job];
            if (wanted) act(pool, wanted);
        }
    }

    void tell(double now, size_t pool, int64_t wanted) {
        if (wanted <= 0) return;
        std::vector<int64_t> guests = here_[pool];
        std::sort(guests.begin(), guests.end(), [&](int64_t a, int64_t b) {
            const Run &one = runs[held_[a].run], &other = runs[held_[b].run];
            return one.start != other.start ? one.start > other.start : held_[a].run < held_[b].run;
        });
        for (const int64_t job : guests) {
            if (wanted <= 0) return;
            Held& held = held_[job];
            if (held.leaving) continue;
            held.leaving = true;
            guests_[pool] -= devices[job];
            coming_[pool] += devices[job];
            wanted -= devices[job];
            events_.push({now + notice[pool_site[pool]], kEviction, job, held.run});
        }
    }
};

// The vector as a NumPy array that owns it.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); });
    return {kept->data(), {kept->size()}, owner};
}

void same_size(size_t size, std::initializer_list<size_t> others) {
    for (const size_t other : others)
        if (other != size) throw std::invalid_argument("arrays of a federation differ in length");
}

// A simulation with the arrays that it reads and writes.
class Federation {
  public:
    Federation(Doubles arrival, Doubles duration, Longs devices, Longs site, Longs kind, Doubles patience, Longs kind_site, Table speed,
               Table believed, Table delay, Doubles cloud_speed, Longs capacity, Longs pool_site, Longs lends, Longs borrows, Doubles notice,
               bool by_credit, bool home_first, double checkpoint, double save, double restart, uint64_t members, OutDoubles first_start,
               OutDoubles end, OutLongs restarts)
        : doubles_{arrival, duration, patience, cloud_speed, notice},
          longs_{devices, site, kind, kind_site, capacity, pool_site},
          tables_{speed, believed, delay},
          out_{first_start, end},
          restarts_(restarts) {
        const size_t jobs = arrival.size(), kinds = kind_site.size(), pools = capacity.size(), sites = lends.size();
        same_size(jobs, {duration.size(), devices.size(), site.size(), kind.size(), patience.size(), first_start.size(), end.size(),
                         restarts.size()});
        same_size(kinds, {speed.shape(0), believed.shape(0), delay.shape(0), cloud_speed.size()});
        same_size(pools, {speed.shape(1), believed.shape(1), delay.shape(1), pool_site.size()});
        same_size(sites, {borrows.size(), notice.size()});
        within(site, 0, sites), within(kind, 0, kinds), within(kind_site, 0, sites), within(pool_site, -1, sites);
        s_.arrival = arrival.data(), s_.duration = duration.data(), s_.patience = patience.data();
        s_.speed = speed.data(), s_.believed = believed.data(), s_.delay = delay.data(), s_.cloud_speed = cloud_speed.data();
        s_.devices = devices.data(), s_.site = site.data(), s_.kind = kind.data(), s_.kind_site = kind_site.data();
        s_.capacity = capacity.data(), s_.pool_site = pool_site.data(), s_.notice = notice.data();
        s_.jobs = jobs, s_.kinds = kinds, s_.pools = pools, s_.sites = sites;
        s_.lends.assign(lends.data(), lends.data() + sites), s_.borrows.assign(borrows.data(), borrows.data() + sites);
        s_.by_credit = by_credit, s_.home_first = home_first;
        s_.checkpoint = checkpoint, s_.save = save, s_.restart = restart, s_.members = members;
        s_.first_start = first_start.data(), s_.end = end.data(), s_.restarts = restarts.data();
        s_.begin();
    }

    bool run_until(double moment) {
        nb::gil_scoped_release release;
        s_.run_until(moment);
        return s_.done();
    }

    void limit(double now, const Longs& lends, const Longs& borrows) {
        same_size(s_.sites, {lends.size(), borrows.size()});
        s_.limit(now, lends.data(), borrows.data());
    }

    int64_t start(double now, int64_t job, int64_t pool) { return s_.start(now, job, pool); }

    auto waiting() const { return owned(s_.waiting()); }
    auto remaining() const { return owned(std::vector<double>(s_.remaining())); }

    auto running() const {
        std::vector<int64_t> pool, count;
        std::vector<double> end;
        s_.running(pool, count, end);
        return std::make_tuple(owned(std::move(pool)), owned(std::move(count)), owned(std::move(end)));
    }

    auto free() const { return owned(std::vector<int64_t>(s_.free())); }
    auto lent() const { return owned(std::vector<int64_t>(s_.lent())); }
    auto borrowed() const { return owned(std::vector<int64_t>(s_.borrowed())); }

    auto runs() const {
        std::vector<int64_t> job, pool;
        std::vector<double> start, end;
        for (const Run& run : s_.runs) {
            job.push_back(run.job);
            pool.push_back(run.pool);
            start.push_back(run.start);
            end.push_back(run.end);
        }
        return std::make_tuple(owned(std::move(job)), owned(std::move(pool)), owned(std::move(start)), owned(std::move(end)));
    }

  private:
    static void within(const Longs& values, int64_t least, size_t most) {
        for (size_t i = 0; i < values.size(); ++i)
            if (values.data()[i] < least || values.data()[i] >= static_cast<int64_t>(most))
                throw std::invalid_argument("an index of a federation lies outside its array");
    }

    Doubles doubles_[5];
    Longs longs_[6];
    Table tables_[3];
    OutDoubles out_[2];
    OutLongs restarts_;
    Simulation s_;
};

}  // namespace

void bind_federation(nb::module_& m) {
    nb::class_<Federation>(m, "Federation")
        .def(nb::init<Doubles, Doubles, Longs, Longs, Longs, Doubles, Longs, Table, Table, Table, Doubles, Longs, Longs, Longs, Longs, Doubles,
                      bool, bool, double, double, double, uint64_t, OutDoubles, OutDoubles, OutLongs>(),
             nb::arg("arrival").noconvert(), nb::arg("duration").noconvert(), nb::arg("devices").noconvert(), nb::arg("site").noconvert(),
             nb::arg("kind").noconvert(), nb::arg("patience").noconvert(), nb::arg("kind_site").noconvert(), nb::arg("speed").noconvert(),
             nb::arg("believed").noconvert(), nb::arg("delay").noconvert(), nb::arg("cloud_speed").noconvert(),
             nb::arg("capacity").noconvert(), nb::arg("pool_site").noconvert(), nb::arg("lends").noconvert(), nb::arg("borrows").noconvert(),
             nb::arg("notice").noconvert(), nb::arg("by_credit"), nb::arg("home_first"), nb::arg("checkpoint"), nb::arg("save"),
             nb::arg("restart"), nb::arg("members"), nb::arg("first_start").noconvert(), nb::arg("end").noconvert(),
             nb::arg("restarts").noconvert())
        .def("run_until", &Federation::run_until, nb::arg("moment"))
        .def("limit", &Federation::limit, nb::arg("now"), nb::arg("lends").noconvert(), nb::arg("borrows").noconvert())
        .def("start", &Federation::start, nb::arg("now"), nb::arg("job"), nb::arg("pool"))
        .def("waiting", &Federation::waiting)
        .def("remaining", &Federation::remaining)
        .def("running", &Federation::running)
        .def("free", &Federation::free)
        .def("lent", &Federation::lent)
        .def("borrowed", &Federation::borrowed)
        .def("runs", &Federation::runs);
}

}  // namespace paceline
