// Futures of a queue under Slurm's rule (src/paceline/scheduling/starts/future.py is the specification).
//
// A pass over the queue ends once no waiting shape fits the free devices, and a shape that was refused is tried again with a
// shorter limit only. So most events cost no plan at all. A plan only loses devices: after 1, 2, 4 ... reservations a shape is
// left out whose job of the shortest limit no longer fits, and the pass ends without another.
#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <stdexcept>
#include <vector>

#include "bind.h"

namespace paceline {
namespace {

using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutTable = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr double kNever = std::numeric_limits<double>::infinity();

using Placement = std::vector<std::pair<int32_t, int32_t>>;  // node, devices
using Free = const int32_t*;

struct Shape {
    const int64_t* pool;
    size_t size;
    int32_t devices, nodes, per_node;
    bool in_row;  // its nodes have consecutive numbers

    bool fits(Free free) const {
        if (in_row) {
            Free there = free + pool[0];
            int32_t found = 0;
            if (nodes) {
                for (size_t i = 0; i < size; ++i) found += there[i] >= per_node;
                return found >= nodes;
            }
            for (size_t i = 0; i < size; ++i) found += there[i];
            return found >= devices;
        }
        int64_t found = 0;
        if (nodes) {
            for (size_t i = 0; i < size; ++i) found += free[pool[i]] >= per_node;
            return found >= nodes;
        }
        for (size_t i = 0; i < size; ++i) found += free[pool[i]];
        return found >= devices;
    }

    // Nodes with the fewest free devices that suffice.
    Placement place(Free free) const {
        Placement chosen;
        std::vector<std::pair<int32_t, int32_t>> order;  // free devices, index in the pool
        if (nodes) {
            for (size_t i = 0; i < size; ++i)
                if (free[pool[i]] >= per_node) order.emplace_back(free[pool[i]], static_cast<int32_t>(i));
            std::partial_sort(order.begin(), order.begin() + nodes, order.end());
            for (int32_t n = 0; n < nodes; ++n) chosen.emplace_back(static_cast<int32_t>(pool[order[n].second]), per_node);
            return chosen;
        }
        int64_t best = -1;
        for (size_t i = 0; i < size; ++i)
            if (free[pool[i]] >= devices && (best < 0 || free[pool[i]] < free[pool[best]])) best = static_cast<int64_t>(i);
        if (best >= 0) return {{static_cast<int32_t>(pool[best]), devices}};
        for (size_t i = 0; i < size; ++i) order.emplace_back(-free[pool[i]], static_cast<int32_t>(i));
        std::sort(order.begin(), order.end());
        int32_t rest = devices;
        for (const auto& [less, index] : order) {
            const int32_t count = std::min(rest, -less);
            if (count <= 0) break;
            chosen.emplace_back(static_cast<int32_t>(pool[index]), count);
            rest -= count;
            if (!rest) break;
        }
        return chosen;
    }
};

struct End {
    double moment;
    int64_t job;
    bool operator>(const End& other) const { return moment != other.moment ? moment > other.moment : job > other.job; }
};

struct Planned {
    double end;
    int64_t job;
    const Placement* placement;
};

// Free devices by time and node, by the limits of jobs that run and the reservations of jobs that wait.
class Plan {
  public:
    void begin(double now, const std::vector<int32_t>& free, std::vector<Planned>& planned) {
        std::sort(planned.begin(), planned.end(),
                  [](const Planned& a, const Planned& b) { return a.end != b.end ? a.end < b.end : a.job < b.job; });
        nodes_ = free.size();
        moments_.assign(1, now);
        free_.assign(free.begin(), free.end());
        free_.reserve((planned.size() + 64) * nodes_);
        for (const Planned& one : planned) {
            moments_.push_back(std::max(one.end, now + 1.0));
            free_.insert(free_.end(), free_.end() - static_cast<std::ptrdiff_t>(nodes_), free_.end());
            for (const auto& [node, count] : *one.placement) free_[free_.size() - nodes_ + node] += count;
        }
    }

    // Devices that stay free from now until a limit; empty if there are too few.
    Placement now(const Shape& shape, double limit) {
        least(0, below(moments_[0] + limit));
        return shape.fits(least_.data()) ? shape.place(least_.data()) : Placement();
    }

    // Reserve devices at the earliest time at which they stay free until the limit. Returns the time. A job of the same shape and
    // no shorter limit that was reserved before tells where to begin: a plan only loses devices.
    double reserve(const Shape& shape, double limit, double after) {
        size_t first = below(after), fitting = first;  // rows between them hold it
        while (first < moments_.size()) {
            const size_t until = std::max(below(moments_[first] + limit), first + 1);
            while (fitting < until && shape.fits(row(fitting))) ++fitting;
            if (fitting < until) {  // no time up to this row is early enough
                first = ++fitting;
                continue;
            }
            least(first, until);
            if (shape.fits(least_.data())) {
                const double moment = moments_[first];
                take(first, moment + limit, shape.place(least_.data()));
                return moment;
            }
            ++first;
        }
        return kNever;
    }

    void take(size_t first, double end, const Placement& placement) {
        const size_t until = below(end);
        if (until == moments_.size() || moments_[until] != end) {
            moments_.insert(moments_.begin() + static_cast<std::ptrdiff_t>(until), end);
            const std::vector<int32_t> before(row(until - 1), row(until - 1) + nodes_);
            free_.insert(free_.begin() + static_cast<std::ptrdiff_t>(until * nodes_), before.begin(), before.end());
        }
        for (const auto& [node, count] : placement)
            for (size_t at = first; at < until; ++at) free_[at * nodes_ + node] -= count;
    }

  private:
    std::vector<double> moments_;
    std::vector<int32_t> free_, least_;
    size_t nodes_ = 0;

    Free row(size_t at) const { return free_.data() + at * nodes_; }
    size_t below(double moment) const {  // rows before a moment
        return static_cast<size_t>(std::lower_bound(moments_.begin(), moments_.end(), moment) - moments_.begin());
    }
    void least(size_t first, size_t until) {
        least_.assign(row(first), row(first) + nodes_);
        for (size_t at = first + 1; at < until; ++at) {
            Free there = row(at);
            for (size_t node = 0; node < nodes_; ++node) least_[node] = std::min(least_[node], there[node]);
        }
    }
};

class Future {
  public:
    const std::vector<Shape>* shapes;
    const int64_t *array_of, *throttle;  // array of each job, -1: none; most tasks of each array that run at once
    size_t arrays;
    const int64_t *free, *shape_of, *held_bounds, *held_nodes, *held_counts;
    const double *limit, *ran, *priority, *submit, *arrives, *length;
    const int64_t *waiting_first, *arrivals, *targets;
    size_t nodes, jobs, waiting_count, arrival_count, target_count, depth;
    double farthest;
    double* starts;

    void run() {
        free_.resize(nodes);
        for (size_t node = 0; node < nodes; ++node) free_[node] = static_cast<int32_t>(free[node]);
        counts_.assign(shapes->size(), 0);
        placements_.assign(jobs, Placement());
        planned_.assign(jobs, 0.0);
        running_.clear();
        target_of_.assign(jobs, -1);
        room_.assign(throttle, throttle + arrays);
        for (size_t job = 0; job < jobs; ++job) {
            if (held_bounds[job] == held_bounds[job + 1]) continue;
            for (int64_t at = held_bounds[job]; at < held_bounds[job + 1]; ++at)
                placements_[job].emplace_back(static_cast<int32_t>(held_nodes[at]), static_cast<int32_t>(held_counts[at]));
            ends_.push({std::max(length[job] - ran[job], 1.0), static_cast<int64_t>(job)});
            planned_[job] = limit[job] - ran[job];
            take(static_cast<int64_t>(job), 1);
            running_.push_back(static_cast<int64_t>(job));
        }
        since_.assign(submit, submit + jobs);
        for (size_t at = 0; at < waiting_count; ++at) wait(waiting_first[at]);
        size_t left = target_count, next = 0;
        for (size_t at = 0; at < target_count; ++at) {
            target_of_[targets[at]] = static_cast<int64_t>(at);
            starts[at] = kNever;
        }
        double now = 0;
        while (true) {
            start(now, left);
            if (!left) return;
            const double end = ends_.empty() ? kNever : ends_.top().moment;
            const double arrival = next < arrival_count ? arrives[next] : kNever;
            now = std::min(end, arrival);
            if (now > farthest) return;
            while (!ends_.empty() && ends_.top().moment <= now) {
                const int64_t job = ends_.top().job;
                ends_.pop();
                take(job, -1);
                for (const auto& [node, count] : placements_[job]) free_[node] += count;
                placements_[job].clear();
                running_.erase(std::find(running_.begin(), running_.end(), job));
            }
            for (; next < arrival_count && arrives[next] <= now; ++next) {
                since_[arrivals[next]] = arrives[next];
                wait(arrivals[next]);
            }
        }
    }

  private:
    std::vector<int32_t> free_;
    std::vector<int64_t> room_, left_;
    std::vector<int64_t> counts_, running_, target_of_, waiting_;
    std::vector<Placement> placements_;
    std::vector<double> planned_, since_;
    std::priority_queue<End, std::vector<End>, std::greater<End>> ends_;
    std::vector<char> fitting_;
    std::vector<double> refused_;
    struct Found {
        double moment, limit;
    };
    std::vector<Found> found_;  // last reservation of each shape
    std::vector<Planned> plan_jobs_;
    std::vector<size_t> ahead_, following_;  // next place in the queue of each shape, and behind each place
    std::vector<double> shortest_;           // shortest limit of a shape from each place on
    Plan plan_;

    const Shape& needs(int64_t job) const { return (*shapes)[static_cast<size_t>(shape_of[job])]; }

    // Count tasks of a job's array that run.
    void take(int64_t job, int64_t tasks) {
        if (array_of[job] >= 0) room_[static_cast<size_t>(array_of[job])] -= tasks;
    }

    void wait(int64_t job) {
        const auto before = [this](int64_t a, int64_t b) {
            if (priority[a] != priority[b]) return priority[a] > priority[b];
            return since_[a] != since_[b] ? since_[a] < since_[b] : a < b;
        };
        waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), job, before), job);
        ++counts_[shape_of[job]];
    }

    size_t refit() {
        size_t found = 0;
        for (size_t shape = 0; shape < shapes->size(); ++shape) {
            fitting_[shape] = fitting_[shape] && (*shapes)[shape].fits(free_.data());
            found += fitting_[shape];
        }
        return found;
    }

    // Note where the jobs of each shape are from a place of the queue on. Those before it are gone.
    void look_ahead(size_t place) {
        const size_t none = waiting_.size();
        ahead_.assign(shapes->size(), none);
        following_.resize(none);
        shortest_.resize(none + 1);
        shortest_[none] = kNever;
        for (size_t at = none; at-- > place;) {
            size_t& next = ahead_[static_cast<size_t>(shape_of[waiting_[at]])];
            following_[at] = next;
            shortest_[at] = std::min(limit[waiting_[at]], shortest_[next]);
            next = at;
        }
    }

    // Leave out the shapes of which no later job can start. Returns whether any is left.
    bool any_ahead() {
        bool any = false;
        for (size_t shape = 0; shape < shapes->size(); ++shape) {
            if (!fitting_[shape]) continue;
            const size_t next = ahead_[shape];
            const double least = next < waiting_.size() ? shortest_[next] : kNever;
            fitting_[shape] = next < waiting_.size() && least < refused_[shape] && !plan_.now((*shapes)[shape], least).empty();
            any = any || fitting_[shape];
        }
        return any;
    }

    void start(double now, size_t& left) {
        fitting_.assign(shapes->size(), 0);
        for (size_t shape = 0; shape < shapes->size(); ++shape) fitting_[shape] = counts_[shape] > 0;
        if (!refit()) return;
        refused_.assign(shapes->size(), kNever);
        found_.assign(shapes->size(), {now, 0.0});
        left_ = room_;  // further tasks of an array neither start nor have a reservation
        bool planned = false, any = false;
        size_t reserved = 0;
        for (size_t place = 0; place < waiting_.size(); ++place) {
            int64_t& job = waiting_[place];
            const int64_t shape = shape_of[job], array = array_of[job];
            if (planned) ahead_[static_cast<size_t>(shape)] = following_[place];
            if (array >= 0 && left_[static_cast<size_t>(array)] <= 0) continue;
            if (fitting_[shape]) {
                Placement placement;
                if (!planned || !reserved)
                    placement = needs(job).place(free_.data());
                else if (limit[job] < refused_[shape])
                    placement = plan_.now(needs(job), limit[job]);
                if (!placement.empty()) {
                    for (const auto& [node, count] : placement) free_[node] -= count;
                    if (planned) plan_.take(0, now + limit[job], placement);
                    ends_.push({now + std::max(length[job], 1.0), job});
                    planned_[job] = now + limit[job];
                    placements_[job] = std::move(placement);
                    running_.push_back(job);
                    --counts_[shape];
                    take(job, 1);
                    if (array >= 0) --left_[static_cast<size_t>(array)];
                    if (target_of_[job] >= 0) {
                        starts[target_of_[job]] = now;
                        --left;
                    }
                    job = -1;
                    any = true;
                    if (!refit()) break;
                    continue;
                }
                refused_[shape] = std::min(refused_[shape], limit[job]);
            }
            if (reserved < depth) {
                if (!planned) {
                    plan_jobs_.clear();
                    for (const int64_t other : running_) plan_jobs_.push_back({planned_[other], other, &placements_[other]});
                    plan_.begin(now, free_, plan_jobs_);
                    planned = true;
                    look_ahead(place + 1);
                }
                Found& last = found_[shape];
                const double after = limit[job] >= last.limit ? last.moment : now;
                last = {plan_.reserve(needs(job), limit[job], after), limit[job]};
                ++reserved;
                if (array >= 0) --left_[static_cast<size_t>(array)];
                if (!(reserved & (reserved - 1)) && !any_ahead()) break;
            }
        }
        if (any) waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), int64_t{-1}), waiting_.end());
    }
};

// Starts of the targets in each future; see starts_of in future.py. Tables have a row per future.
void queue_starts(Longs free, Longs pool_bounds, Longs pools, Longs shape_devices, Longs shape_nodes, Longs shape_of, Doubles limit,
                   Doubles ran, Doubles priority, Doubles submit, Longs held_bounds, Longs held_nodes, Longs held_counts,
                   Longs waiting, Table lengths, Longs arrival_bounds, Longs arrivals, Doubles arrives, Longs targets, int64_t depth,
                  Longs array_of, Longs throttle, double farthest, OutTable starts) {
    const size_t jobs = shape_of.size(), futures = lengths.shape(0);
    for (const size_t size : {limit.size(), ran.size(), priority.size(), submit.size(), held_bounds.size() - 1, array_of.size(), lengths.shape(1)})
        if (size != jobs) throw std::invalid_argument("columns of different lengths");
    if (arrival_bounds.size() != futures + 1 || arrives.size() != arrivals.size() || starts.shape(0) != futures || starts.shape(1) != targets.size())
        throw std::invalid_argument("tables of different numbers of futures or targets");
    std::vector<Shape> shapes;
    for (size_t at = 0; at < shape_devices.size(); ++at) {
        const auto devices = static_cast<int32_t>(shape_devices(at)), nodes = static_cast<int32_t>(shape_nodes(at));
        const auto first = static_cast<size_t>(pool_bounds(at)), size = static_cast<size_t>(pool_bounds(at + 1)) - first;
        const int64_t* pool = pools.data() + first;
        bool in_row = size > 0;
        for (size_t node = 1; node < size; ++node) in_row = in_row && pool[node] == pool[node - 1] + 1;
        shapes.push_back({pool, size, devices, nodes, nodes ? (devices + nodes - 1) / nodes : 0, in_row});
    }
    nb::gil_scoped_release release;
    for (size_t future = 0; future < futures; ++future) {
        Future one;
        one.shapes = &shapes;
        one.free = free.data();
        one.shape_of = shape_of.data();
        one.array_of = array_of.data();
        one.throttle = throttle.data();
        one.arrays = throttle.size();
        one.priority = priority.data();
        one.submit = submit.data();
        one.held_bounds = held_bounds.data();
        one.held_nodes = held_nodes.data();
        one.held_counts = held_counts.data();
        one.limit = limit.data();
        one.ran = ran.data();
        one.arrives = arrives.data() + arrival_bounds(future);
        one.length = lengths.data() + future * jobs;
        one.waiting_first = waiting.data();
        one.arrivals = arrivals.data() + arrival_bounds(future);
        one.targets = targets.data();
        one.nodes = free.size();
        one.jobs = jobs;
        one.waiting_count = waiting.size();
        one.arrival_count = static_cast<size_t>(arrival_bounds(future + 1) - arrival_bounds(future));
        one.target_count = targets.size();
        one.depth = static_cast<size_t>(depth);
        one.farthest = farthest;
        one.starts = starts.data() + future * targets.size();
        one.run();
    }
}

}  // namespace

void bind_queue_futures(nb::module_& m) { m.def("queue_starts", &queue_starts); }

}  // namespace paceline
