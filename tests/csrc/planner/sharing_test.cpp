// plan_shared() against a machine that runs the nodes: each writes the contents of its value into a memory of
// labelled words, and every read must find what was written. It knows nothing of groups.
#include "planner/sharing.h"

#include <cstdio>
#include <map>
#include <random>

#include "test.h"

using namespace staticrt::planner;

namespace {

constexpr int64_t kWord = 64;  // bytes, and the alignment

// Node t makes value t, reading `reads`; sizes in words.
struct RandomProgram {
  std::vector<Spec> specs;
  std::vector<std::vector<int32_t>> reads;
  std::vector<Overwrite> overwrites;
  std::vector<Copy> copies;
  std::vector<Loan> loans;
};

// With loans, the first values are made by nobody: they are there from the start.
RandomProgram random_program(std::mt19937& random, int32_t nodes, bool with_copies, bool with_loans) {
  RandomProgram p;
  const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  std::map<int32_t, Copy> copy_at;
  const int32_t given = with_loans ? 1 + below(3) : 0;
  for (int32_t t = 0; t < given; ++t) {
    p.specs.push_back({0, given + 1, (1 + below(4)) * kWord});
    p.reads.emplace_back();
    p.loans.push_back({t, below(2) == 0 ? nodes : given + below(nodes)});
  }
  for (int32_t t = given; t < nodes; ++t) {
    std::vector<int32_t> reads;
    int64_t words = 1 + below(3);
    const bool copies = with_copies && t > 1 && below(3) == 0;
    if (copies) {
      Copy copy;
      copy.output = t;
      words = below(4) == 0 ? 1 : 0;  // a part that is not a spec comes first
      for (int32_t k = 1 + below(4); k > 0; --k) {
        // Often what was copied before, so that copies nest and extend each other.
        const int32_t input = std::max(given, t - 1 - below(6));
        if (input >= t) continue;  // what is given is not a part
        copy.parts.push_back({input, words * kWord});
        words += p.specs[input].size_bytes / kWord;
        reads.push_back(input);
      }
      copy_at[t] = copy;
    } else {
      for (int32_t k = below(3); t > 0 && k > 0; --k) reads.push_back(std::max(0, t - 1 - below(5)));
      if (!reads.empty() && below(2) == 0) words = p.specs[reads[0]].size_bytes / kWord;
    }
    p.specs.push_back({t, t + 1, words * kWord});
    for (const int32_t input : reads) p.specs[input].end = t + 1;
    p.reads.push_back(reads);
  }
  for (const auto& [t, copy] : copy_at) p.copies.push_back(copy);
  for (Loan& loan : p.loans) loan.until = std::max(loan.until, p.specs[loan.spec].end);
  for (int32_t t = given; t < nodes; ++t) {
    if (copy_at.count(t)) continue;
    for (const int32_t input : p.reads[t]) {
      if (p.specs[input].end == t + 1 && p.specs[input].size_bytes == p.specs[t].size_bytes)
        p.overwrites.push_back({input, t});
    }
  }
  return p;
}

// Empty if every read found the contents of its value; else what went wrong.
std::string run(const RandomProgram& p, const SharedPlan& plan) {
  using Word = std::pair<int32_t, int64_t>;  // whose contents, which word of them
  // The arena, the loans, then an allocation for each value, which those that are not apart leave alone.
  std::vector<size_t> first = {0};
  std::vector<int64_t> room = {plan.arena_bytes};
  for (const Loan& loan : p.loans) {
    first.push_back(first.back() + static_cast<size_t>(room.back() / kWord));
    room.push_back(p.specs[loan.spec].size_bytes);
  }
  for (const Spec& spec : p.specs) {
    first.push_back(first.back() + static_cast<size_t>(room.back() / kWord));
    room.push_back(spec.size_bytes);
  }
  std::vector<Word> memory(first.back() + static_cast<size_t>(room.back() / kWord) + 1, {-1, 0});
  std::vector<std::vector<Word>> contents;
  const auto place = [&](int32_t id) {
    if (plan.apart[id] >= 0) return p.loans.size() + 1 + static_cast<size_t>(plan.apart[id]);
    return static_cast<size_t>(plan.loan[id] + 1);
  };
  const auto at = [&](int32_t id) {
    return first[place(id)] + static_cast<size_t>(plan.offsets[id] / kWord);
  };
  const auto given = static_cast<int32_t>(p.loans.size());
  for (int32_t t = 0; t < static_cast<int32_t>(p.specs.size()); ++t) {
    if (plan.offsets[t] % kWord != 0 || plan.offsets[t] + p.specs[t].size_bytes > room[place(t)])
      return "value " + std::to_string(t) + " lies outside";
    if (t < given && (plan.loan[t] != t || plan.offsets[t] != 0)) return "a loan moved";
    if (t >= given && plan.loan[t] >= 0 && p.specs[t].end > p.loans[plan.loan[t]].until)
      return "value " + std::to_string(t) + " outlives its loan";
    for (int32_t id = 0; id < t && t >= given; ++id) {
      if (p.specs[id].end <= t) continue;
      for (size_t w = 0; w < contents[id].size(); ++w) {
        if (memory[at(id) + w] != contents[id][w])
          return "value " + std::to_string(id) + " is spoiled before node " + std::to_string(t);
      }
    }
    std::vector<Word> made;
    for (int64_t w = 0; w < p.specs[t].size_bytes / kWord; ++w) made.push_back({t, w});
    std::vector<bool> lies_there(made.size(), false);
    for (size_t k = 0; k < p.copies.size(); ++k) {
      if (p.copies[k].output != t) continue;
      for (size_t part = 0; part < p.copies[k].parts.size(); ++part) {
        const auto& [input, offset] = p.copies[k].parts[part];
        for (size_t w = 0; w < contents[input].size(); ++w) {
          made[static_cast<size_t>(offset / kWord) + w] = contents[input][w];
          lies_there[static_cast<size_t>(offset / kWord) + w] = plan.in_place[k][part];
        }
      }
    }
    for (size_t w = 0; w < made.size(); ++w) {
      if (!lies_there[w]) memory[at(t) + w] = made[w];
    }
    contents.push_back(made);
  }
  return "";
}

int64_t load(const std::vector<Spec>& specs) {
  int64_t most = 0;
  for (const Spec& at : specs) {
    int64_t live = 0;
    for (const Spec& s : specs) live += s.begin <= at.begin && at.begin < s.end ? s.size_bytes : 0;
    most = std::max(most, live);
  }
  return most;
}

TEST(random_programs_compute_the_same_in_shared_bytes) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  int overwritten = 0, in_place = 0, smaller = 0, whole = 0, lent = 0;
  for (int round = 0; round < 4000; ++round) {
    const RandomProgram p =
        random_program(random, static_cast<int32_t>(random() % 20) + 3, round % 2 == 1, round % 4 > 1);
    const SharedPlan shared = plan_shared(p.specs, p.overwrites, p.copies, p.loans);
    const std::string wrong = run(p, shared);
    if (!wrong.empty()) {
      std::printf("seed %u, round %d: %s\n", kSeed, round, wrong.c_str());
      for (size_t t = 0; t < p.specs.size(); ++t)
        std::printf("  %zu: [%ld, %ld) %ld at %ld\n", t, static_cast<long>(p.specs[t].begin),
                    static_cast<long>(p.specs[t].end), static_cast<long>(p.specs[t].size_bytes),
                    static_cast<long>(shared.offsets[t]));
    }
    EXPECT_EQ(wrong, std::string());
    const std::vector<Spec> made(p.specs.begin() + static_cast<ptrdiff_t>(p.loans.size()), p.specs.end());
    EXPECT(shared.arena_bytes <= plan(made).arena_bytes);
    for (size_t id = p.loans.size(); id < p.specs.size(); ++id) lent += shared.loan[id] >= 0;
    EXPECT(shared.lower_bound <= shared.arena_bytes);
    smaller += shared.arena_bytes < load(made);  // no plan without sharing is that small
    for (const bool done : shared.overwritten) overwritten += done;
    for (const auto& parts : shared.in_place) {
      size_t done = 0;
      for (const bool part : parts) done += part;
      in_place += static_cast<int>(done);
      whole += done == parts.size() && done > 1;
    }
  }
  EXPECT(overwritten > 4000);
  EXPECT(in_place > 2000);
  EXPECT(smaller > 1000);
  EXPECT(whole > 200);
  EXPECT(lent > 1000);
}

TEST(random_programs_compute_the_same_where_large_values_are_apart) {
  std::mt19937 random(11);
  int apart = 0, overwritten = 0;
  for (int round = 0; round < 2000; ++round) {
    const RandomProgram p =
        random_program(random, static_cast<int32_t>(random() % 20) + 3, round % 2 == 1, round % 4 > 1);
    const auto end = static_cast<int32_t>(p.specs.size()) - round % 3;  // the last may be workspaces
    const SharedPlan shared =
        plan_shared(p.specs, p.overwrites, p.copies, p.loans, 64, Effort::kDefault, plan, {2 * kWord, end});
    EXPECT_EQ(run(p, shared), std::string());
    for (int32_t id = 0; id < static_cast<int32_t>(p.specs.size()); ++id) {
      if (shared.apart[id] < 0) continue;
      ++apart;
      overwritten += shared.apart[id] != id;
      EXPECT(p.specs[shared.apart[id]].size_bytes >= 2 * kWord && shared.apart[id] < end);
      EXPECT(shared.loan[id] < 0);
    }
  }
  EXPECT(apart > 4000);
  EXPECT(overwritten > 500);
}

TEST(what_is_apart_makes_no_loan_last_longer) {
  const std::vector<Spec> specs = {{0, 1, 256}, {2, 4, 256}, {3, 5, 64}};
  const std::vector<Loan> loans = {{0, 5}};
  EXPECT(plan_shared(specs, {}, {}, loans).loan == (std::vector<int32_t>{0, 0, -1}));
  const SharedPlan shared = plan_shared(specs, {}, {}, loans, 64, Effort::kDefault, plan, {128, 3});
  EXPECT(shared.loan == (std::vector<int32_t>{0, -1, -1}));
  EXPECT(shared.apart == (std::vector<int32_t>{-1, 1, -1}));
  EXPECT_EQ(shared.arena_bytes, 64);
}

TEST(a_chain_of_overwrites_needs_one_buffer) {
  std::vector<Spec> specs;
  std::vector<Overwrite> overwrites;
  for (int32_t t = 0; t < 10; ++t) {
    specs.push_back({t, t + 2, 640});
    if (t > 0) overwrites.push_back({t - 1, t});
  }
  const SharedPlan shared = plan_shared(specs, overwrites, {});
  EXPECT_EQ(shared.arena_bytes, 640);
  EXPECT_EQ(plan(specs).arena_bytes, 1280);
}

// a, b and c grow one after another, and each stage reads all before it side by side: a | b | c.
TEST(growing_concatenations_share_one_buffer) {
  const std::vector<Spec> specs = {{0, 5, 64}, {1, 5, 128}, {2, 4, 192}, {3, 5, 64}, {4, 6, 256}};
  const std::vector<Copy> copies = {{2, {{0, 0}, {1, 64}}}, {4, {{0, 0}, {1, 64}, {3, 192}}}};
  const SharedPlan shared = plan_shared(specs, {}, copies);
  EXPECT_EQ(shared.arena_bytes, 256);
  EXPECT(shared.in_place[0] == (std::vector<bool>{true, true}));
  EXPECT(shared.in_place[1] == (std::vector<bool>{true, true, true}));
  EXPECT_EQ(shared.offsets[2], shared.offsets[4]);
}

TEST(a_value_twice_in_a_copy_is_copied_once) {
  const std::vector<Spec> specs = {{0, 2, 64}, {1, 3, 128}};
  const SharedPlan shared = plan_shared(specs, {}, std::vector<Copy>{{1, {{0, 0}, {0, 64}}}});
  EXPECT_EQ(shared.arena_bytes, 128);
  EXPECT(shared.in_place[0] == (std::vector<bool>{true, false}));
}

TEST(an_input_that_lives_on_is_not_part_of_what_is_written_over) {
  // 2 = a | b; 3 is written over it while a is still read.
  const std::vector<Spec> specs = {{0, 5, 64}, {1, 3, 64}, {2, 4, 128}, {3, 5, 128}};
  const std::vector<Overwrite> overwrites = {{2, 3}};
  const std::vector<Copy> copies = {{2, {{0, 0}, {1, 64}}}};
  const SharedPlan shared = plan_shared(specs, overwrites, copies);
  EXPECT(!(shared.overwritten[0] && shared.in_place[0][0]));
}

TEST(bytes_of_a_later_value_are_lent_until_it_is_made) {
  const std::vector<Spec> specs = {{0, 2, 64}, {1, 3, 64}, {2, 3, 32}, {2, 4, 64}};
  Loan loan;
  loan.until = 3;
  loan.size_bytes = 64;
  const SharedPlan shared = plan_shared(specs, {}, {}, std::vector<Loan>{loan});
  EXPECT(shared.loan == (std::vector<int32_t>{0, -1, 0, -1}));
  EXPECT_EQ(shared.arena_bytes, 128);
}

TEST(what_ends_last_may_take_the_smallest_loan) {
  const std::vector<Spec> specs = {{0, 1, 128}, {0, 1, 64}, {1, 3, 64}, {1, 2, 64}};
  const std::vector<Loan> loans = {{0, 4}, {1, 4}};
  const auto loans_of = [&](Lend lend) {
    return plan_shared(specs, {}, {}, loans, 64, Effort::kDefault, plan, {}, lend).loan;
  };
  EXPECT(loans_of(Lend::kFirst) == (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT(loans_of(Lend::kLast) == (std::vector<int32_t>{0, 1, 1, 0}));
}

TEST(unaligned_parts_are_copied) {
  const std::vector<Spec> specs = {{0, 3, 40}, {1, 3, 64}, {2, 4, 104}};
  const SharedPlan shared = plan_shared(specs, {}, std::vector<Copy>{{2, {{0, 0}, {1, 40}}}});
  EXPECT(shared.in_place[0] == (std::vector<bool>{true, false}));
}

TEST(long_chains_are_planned_in_linear_time) {
  constexpr int32_t kNodes = 20000;
  std::vector<Spec> specs;
  std::vector<Overwrite> overwrites;
  for (int32_t t = 0; t < kNodes; ++t) {
    specs.push_back({t, t + 2, 64});
    if (t > 0) overwrites.push_back({t - 1, t});
  }
  EXPECT_EQ(plan_shared(specs, overwrites, {}).arena_bytes, 64);
}

TEST(wrong_specs_are_refused_before_anything_is_shared) {
  EXPECT_THROW(plan_shared(std::vector<Spec>{{3, 3, 64}}, {}, {}), PlanError, "empty");
}

}  // namespace
