#include "planner/sharing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "common/tuning.h"
#include "planner/instance.h"

namespace staticrt::planner {
namespace {

// Bytes of a member that hold one value's contents. A copy whose parts lie in place holds theirs.
struct Atom {
  int64_t offset_bytes = 0;  // in the member
  int64_t size_bytes = 0;
  int32_t content = 0;  // equal contents, equal bytes
};

struct Group {
  int64_t begin = 0, end = 0, size_bytes = 0;
  std::vector<int32_t> members;  // those that may still meet a later one come last
  size_t first_active = 0;
};

class Groups {
 public:
  // has_copies: a later member may meet any member, not only those still live.
  Groups(std::span<const Spec> specs, std::span<const Loan> loans, int64_t alignment, bool has_copies)
      : specs_(specs), loans_(loans), alignment_(alignment), has_copies_(has_copies) {
    const auto n = static_cast<int32_t>(specs.size());
    for (int32_t id = 0; id < n; ++id) {
      const Spec& spec = specs[id];
      groups_.push_back({spec.begin, spec.end, spec.size_bytes, {id}, 0});
      group_of_.push_back(id);
      offset_of_.push_back(0);
      atoms_.push_back({{0, spec.size_bytes, id}});
    }
    num_contents_ = n;
    is_lent_.assign(specs.size(), false);
    until_.assign(specs.size(), std::numeric_limits<int64_t>::max());
    for (const Loan& loan : loans) {
      if (loan.spec == Loan::kNone) continue;
      is_lent_[loan.spec] = true;
      until_[loan.spec] = loan.until;
    }
  }

  int64_t lower_bound() const { return heaviest(load()); }

  bool overwrite(const Overwrite& o) {
    const Spec& in = specs_[o.input];
    const Spec& out = specs_[o.output];
    if (in.size_bytes != out.size_bytes || in.size_bytes == 0) return false;
    over_[o.output] = o.input;
    const int32_t into = group_of_[o.input];
    const int32_t from = group_of_[o.output];
    const int64_t shift = offset_of_[o.input] - offset_of_[o.output];
    if (into != from && fits(from, into, shift)) {
      merge(from, into, shift);
      return true;
    }
    if (has_copies_ && into != from && fits(into, from, -shift)) {
      merge(into, from, -shift);
      return true;
    }
    over_.erase(o.output);
    return false;
  }

  // Call once before the copies, which may come before or after the overwrites.
  void begin_copies() { load_ = load(); }
  void end_copies() { load_.clear(); }

  // Puts as many parts as possible in place; none if LB grew.
  std::vector<bool> copy(const Copy& c) {
    const int64_t before = heaviest(load_);
    std::vector<bool> done(c.parts.size(), false);
    const Undo undo = remember(c);
    for (size_t k = 0; k < c.parts.size(); ++k) {
      const int32_t into = group_of_[c.output];
      const int32_t from = group_of_[c.parts[k].input];
      const int64_t shift = shift_of(c, c.parts[k]);
      if (done[k] || specs_[c.parts[k].input].size_bytes == 0) continue;
      // The other parts of this group come along.
      std::vector<bool> would = done;
      for (size_t p = k; p < c.parts.size(); ++p) {
        const Copy::Part& part = c.parts[p];
        would[p] = would[p] || (group_of_[part.input] == from && shift_of(c, part) == shift);
      }
      set_content(c, would);
      const bool small =
          groups_[from].members.size() + groups_[into].members.size() <= tuning::kMaxGroupMembers;
      if (into == from ? shift == 0 && is_consistent(c.output, into) : small && fits(from, into, shift)) {
        if (into != from) merge(from, into, shift);
        done = would;
      } else {
        set_content(c, done);
      }
    }
    const bool any = std::find(done.begin(), done.end(), true) != done.end();
    if (any && heaviest(load_) <= before) return done;
    restore(undo);
    return std::vector<bool>(c.parts.size(), false);
  }

  SharedPlan plan(Effort effort, const PlanFn& plan_groups, const Apart& apart, Lend which) const {
    const std::vector<int32_t> loan_of = lend(apart, which);
    const auto is_apart = [&](size_t g) {
      return groups_[g].size_bytes >= apart.min_bytes && loan_of[g] < 0 &&
             static_cast<int32_t>(g) < apart.end;
    };
    std::vector<Spec> specs;
    std::vector<size_t> position(groups_.size(), 0);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].members.empty() || loan_of[g] >= 0 || is_apart(g)) continue;
      position[g] = specs.size();
      specs.push_back({groups_[g].begin, groups_[g].end, groups_[g].size_bytes});
    }
    const Plan planned = plan_groups(specs, alignment_, effort);
    SharedPlan result;
    for (size_t id = 0; id < specs_.size(); ++id) {
      const int32_t g = group_of_[id];
      const bool in_arena = specs_[id].size_bytes > 0 && loan_of[g] < 0 && !is_apart(g);
      result.offsets.push_back((in_arena ? planned.offsets[position[g]] : 0) + offset_of_[id]);
      result.loan.push_back(loan_of[g]);
      result.apart.push_back(is_apart(g) ? g : -1);  // group g is as large as spec g, its first member
    }
    result.arena_bytes = planned.arena_bytes;
    result.lower_bound = planned.lower_bound;
    return result;
  }

 private:
  struct Undo {
    std::vector<std::pair<int32_t, Group>> groups;
    std::vector<std::pair<int32_t, std::pair<int32_t, int64_t>>> values;
    int32_t output;
    std::vector<Atom> atoms;
  };

  // The loan that each group lies in, from its first byte on; -1: none. What can have an allocation of its
  // own does not make a loan last longer.
  std::vector<int32_t> lend(const Apart& apart, Lend which) const {
    std::vector<int32_t> loan_of(groups_.size(), -1);
    for (size_t k = 0; k < loans_.size(); ++k)
      if (loans_[k].spec != Loan::kNone) loan_of[group_of_[loans_[k].spec]] = static_cast<int32_t>(k);
    std::vector<size_t> order;
    for (size_t g = 0; g < groups_.size() && !loans_.empty() && apart.end == 0; ++g) {
      const bool may = !groups_[g].members.empty() && groups_[g].members[0] < loans_[0].borrowers;
      if (may && groups_[g].size_bytes > 0 && loan_of[g] < 0) order.push_back(g);
    }
    const auto rank = [&](size_t g) {
      return std::pair(groups_[g].size_bytes, which == Lend::kLast ? groups_[g].end : 0);
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) > rank(b); });
    std::vector<std::vector<size_t>> held(loans_.size());
    for (const size_t g : order) {
      const Group& group = groups_[g];
      int64_t least = std::numeric_limits<int64_t>::max();
      for (size_t k = 0; k < loans_.size(); ++k) {
        const bool has_own = loans_[k].spec != Loan::kNone;
        const int64_t from = has_own ? groups_[group_of_[loans_[k].spec]].end : 0;
        const int64_t size_bytes =
            has_own ? groups_[group_of_[loans_[k].spec]].size_bytes : loans_[k].size_bytes;
        if (size_bytes >= least || (which == Lend::kFirst && loan_of[g] >= 0)) continue;
        const auto meets = [&](size_t other) {
          return group.begin < groups_[other].end && groups_[other].begin < group.end;
        };
        if (group.size_bytes > size_bytes || group.begin < from || group.end > loans_[k].until ||
            std::any_of(held[k].begin(), held[k].end(), meets))
          continue;
        loan_of[g] = static_cast<int32_t>(k);
        least = size_bytes;
      }
      if (loan_of[g] >= 0) held[static_cast<size_t>(loan_of[g])].push_back(g);
    }
    return loan_of;
  }

  int64_t rounded(int64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }

  // Bytes live at each moment.
  std::vector<int64_t> load() const {
    int64_t last = 0;
    for (const Spec& spec : specs_) last = std::max(last, spec.end);
    std::vector<int64_t> load(static_cast<size_t>(last) + 1, 0);
    for (const Group& group : groups_) {
      if (group.members.empty()) continue;
      load[group.begin] += rounded(group.size_bytes);
      load[group.end] -= rounded(group.size_bytes);
    }
    for (size_t t = 1; t < load.size(); ++t) load[t] += load[t - 1];
    return load;
  }
  static int64_t heaviest(const std::vector<int64_t>& load) {
    return load.empty() ? 0 : *std::max_element(load.begin(), load.end());
  }
  void add_load(const Group& group, int64_t sign) {
    if (load_.empty()) return;
    for (int64_t t = group.begin; t < group.end; ++t) load_[t] += sign * rounded(group.size_bytes);
  }

  // By how much a part's group must move to lie in its place of the output.
  int64_t shift_of(const Copy& c, const Copy::Part& part) const {
    return offset_of_[c.output] + part.offset_bytes - offset_of_[part.input];
  }

  // The contents of a copy's output if the parts marked in `done` lie in place.
  void set_content(const Copy& c, const std::vector<bool>& done) {
    std::vector<size_t> order;
    for (size_t p = 0; p < c.parts.size(); ++p) {
      if (done[p]) order.push_back(p);
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return c.parts[a].offset_bytes < c.parts[b].offset_bytes; });
    std::vector<Atom> atoms;
    const int32_t own = num_contents_++;
    int64_t at = 0;
    for (const size_t p : order) {
      const int64_t place = c.parts[p].offset_bytes;
      if (place > at) atoms.push_back({at, place - at, own});
      for (Atom atom : atoms_[c.parts[p].input]) {
        atom.offset_bytes += place;
        atoms.push_back(atom);
      }
      at = place + specs_[c.parts[p].input].size_bytes;
    }
    const int64_t size = specs_[c.output].size_bytes;
    if (at < size) atoms.push_back({at, size - at, own});
    atoms_[c.output] = std::move(atoms);
  }

  // Whether a (at offset `a_at` of a group) and b may be in one group: where they share bytes while both
  // live, they hold the same contents, or one is written over the other by the node that reads it last.
  bool agree(int32_t a, int64_t a_at, int32_t b, int64_t b_at) const {
    const Spec& x = specs_[a];
    const Spec& y = specs_[b];
    if (x.end <= y.begin || y.end <= x.begin) return true;
    if (a_at + x.size_bytes <= b_at || b_at + y.size_bytes <= a_at) return true;
    const auto writes_over = [&](int32_t out, int32_t in) {
      const auto found = over_.find(out);
      return found != over_.end() && found->second == in;
    };
    if (a_at == b_at && (writes_over(a, b) || writes_over(b, a))) return true;
    for (const Atom& p : atoms_[a]) {
      for (const Atom& q : atoms_[b]) {
        const int64_t from = a_at + p.offset_bytes;
        const int64_t to = b_at + q.offset_bytes;
        if (from + p.size_bytes <= to || to + q.size_bytes <= from) continue;
        if (p.content != q.content || from != to) return false;
      }
    }
    return true;
  }

  // Whether group `from` can lie at `shift` bytes of group `into`.
  bool fits(int32_t from, int32_t into, int64_t shift) {
    Group& target = groups_[into];
    const Group& moved = groups_[from];
    if (is_lent_[from] || moved.end > until_[into]) return false;  // a loan's bytes are where they are
    if (shift < 0 || shift % alignment_ != 0 || shift + moved.size_bytes > target.size_bytes) return false;
    // Overwrites come in the order of their nodes: what ended before this group begins meets no later one.
    size_t first = target.first_active;
    for (size_t k = first; k < target.members.size(); ++k) {
      if (specs_[target.members[k]].end <= moved.begin) std::swap(target.members[k], target.members[first++]);
    }
    if (!has_copies_) target.first_active = first;
    for (size_t k = first; k < target.members.size(); ++k) {
      const int32_t b = target.members[k];
      for (const int32_t a : moved.members) {
        if (!agree(a, offset_of_[a] + shift, b, offset_of_[b])) return false;
      }
    }
    return true;
  }

  bool is_consistent(int32_t value, int32_t group) const {
    return std::all_of(groups_[group].members.begin(), groups_[group].members.end(), [&](int32_t other) {
      return other == value || agree(value, offset_of_[value], other, offset_of_[other]);
    });
  }

  void merge(int32_t from, int32_t into, int64_t shift) {
    Group& target = groups_[into];
    Group& moved = groups_[from];
    add_load(target, -1);
    add_load(moved, -1);
    for (const int32_t id : moved.members) {
      group_of_[id] = into;
      offset_of_[id] += shift;
      target.members.push_back(id);
    }
    target.begin = std::min(target.begin, moved.begin);
    target.end = std::max(target.end, moved.end);
    add_load(target, +1);
    moved.members.clear();
    moved.first_active = 0;
  }

  Undo remember(const Copy& c) const {
    Undo undo{{}, {}, c.output, atoms_[c.output]};
    std::vector<int32_t> touched = {group_of_[c.output]};
    for (const Copy::Part& part : c.parts) touched.push_back(group_of_[part.input]);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const int32_t g : touched) {
      undo.groups.emplace_back(g, groups_[g]);
      for (const int32_t id : groups_[g].members)
        undo.values.push_back({id, {group_of_[id], offset_of_[id]}});
    }
    return undo;
  }

  void restore(const Undo& undo) {
    for (const auto& [g, group] : undo.groups) {
      if (!groups_[g].members.empty()) add_load(groups_[g], -1);
      groups_[g] = group;
      add_load(group, +1);
    }
    for (const auto& [id, where] : undo.values) std::tie(group_of_[id], offset_of_[id]) = where;
    atoms_[undo.output] = undo.atoms;
  }

  std::span<const Spec> specs_;
  std::span<const Loan> loans_;
  int64_t alignment_;
  bool has_copies_;
  std::vector<Group> groups_;
  std::vector<int32_t> group_of_;
  std::vector<int64_t> offset_of_;
  std::vector<bool> is_lent_;   // by group: it holds a loan's spec
  std::vector<int64_t> until_;  // by group: when all members must have ended
  std::vector<std::vector<Atom>> atoms_;
  std::map<int32_t, int32_t> over_;  // output -> the input it is written over
  std::vector<int64_t> load_;        // by moment; empty but during copies
  int32_t num_contents_ = 0;
};

struct Attempt {
  Groups groups;
  std::vector<bool> overwritten;
  std::vector<std::vector<bool>> in_place;
};

Attempt attempt(std::span<const Spec> specs, std::span<const Overwrite> overwrites,
                std::span<const Copy> copies, std::span<const Loan> loans, int64_t alignment,
                bool copies_first) {
  Attempt a{Groups(specs, loans, alignment, !copies.empty()), {}, {}};
  const auto do_copies = [&] {
    a.groups.begin_copies();
    for (const Copy& c : copies) a.in_place.push_back(a.groups.copy(c));
    a.groups.end_copies();
  };
  if (copies_first) do_copies();
  for (const Overwrite& o : overwrites) a.overwritten.push_back(a.groups.overwrite(o));
  if (!copies_first) do_copies();
  return a;
}

}  // namespace

SharedPlan plan_shared(std::span<const Spec> specs, std::span<const Overwrite> overwrites,
                       std::span<const Copy> copies, std::span<const Loan> loans, int64_t alignment,
                       Effort effort, const PlanFn& plan_groups, const Apart& apart, Lend lend) {
  const Instance instance = make_instance(specs, alignment);  // checks the specs
  SharedPlan shared;
  const bool any = !overwrites.empty() || !copies.empty();
  if (any) {
    std::optional<Attempt> best;
    for (const bool copies_first : {false, true}) {
      if (copies_first && (copies.empty() || overwrites.empty())) continue;
      Attempt a = attempt(specs, overwrites, copies, loans, alignment, copies_first);
      if (!best || a.groups.lower_bound() < best->groups.lower_bound()) best.emplace(std::move(a));
    }
    shared = best->groups.plan(effort, plan_groups, apart, lend);
    shared.overwritten = std::move(best->overwritten);
    shared.in_place = std::move(best->in_place);
    if (loans.empty() && shared.arena_bytes <= instance.lower_bound * instance.unit) return shared;
  }
  SharedPlan alone = Groups(specs, loans, alignment, false).plan(effort, plan_groups, apart, lend);
  if (any && shared.arena_bytes <= alone.arena_bytes) return shared;
  alone.overwritten.assign(overwrites.size(), false);
  for (const Copy& c : copies) alone.in_place.emplace_back(c.parts.size(), false);
  return alone;
}

}  // namespace staticrt::planner
