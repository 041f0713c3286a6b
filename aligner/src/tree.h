// The tree of what is expected, the likeliest nodes first. See `drafting/tree.py` and `draft.py`.

#pragma once

#include <deque>
#include <limits>

#include "candidates.h"

namespace aligner {

constexpr int32_t NO_PARENT = -1;

// To which node some tokens lead after a node of a tree, and how many of them are nodes.
inline std::pair<int32_t, int32_t> walk_nodes(const std::vector<int32_t>& token_ids,
                                              const std::vector<int32_t>& parents,
                                              std::span<const int32_t> tokens, int32_t node) {
  const auto size = int32_t(token_ids.size());
  int32_t count = 0;
  for (int32_t token_id : tokens) {
    int32_t child = node + 1;
    while (child < size && (token_ids[child] != token_id || parents[child] != node)) ++child;
    if (child == size) break;
    node = child;
    ++count;
  }
  return {node, count};
}

// A tree of expected tokens: parents stand before their children, and values never rise.
struct Draft {
  std::vector<int32_t> token_ids, parents, positions;
  std::vector<float> values;

  bool operator==(const Draft&) const = default;

  int32_t size() const { return int32_t(token_ids.size()); }

  void reserve(int32_t number) {
    for (auto* column : {&token_ids, &parents, &positions}) column->reserve(number);
    values.reserve(number);
  }

  void add(int32_t token_id, int32_t parent, int32_t position, double value) {
    token_ids.push_back(token_id);
    parents.push_back(parent);
    positions.push_back(position);
    values.push_back(float(value));
  }

  // Whether every node comes after the one before it.
  bool is_chain() const {
    for (int32_t node = size() - 1; node >= 0; --node) {
      if (parents[node] != node - 1) return false;
    }
    return true;
  }

  // See `walk_nodes`.
  std::pair<int32_t, int32_t> walk(const std::vector<int32_t>& tokens, int32_t node) const {
    return walk_nodes(token_ids, parents, tokens, node);
  }

  // How long the longest path after a node is; NO_PARENT for the root.
  int32_t find_height(int32_t node) const {
    std::vector<int32_t> heights(token_ids.size() + 1);
    for (int32_t each = size() - 1; each > node; --each) {
      int32_t& height = heights[parents[each] + 1];
      height = std::max(height, heights[each + 1] + 1);
    }
    return heights[node + 1];
  }
};

// Grows one tree.
class TreeGrower {
 public:
  TreeGrower(const View& view, int32_t max_tokens, double min_value, Arena& arena)
      : view_(view),
        text_(view.text),
        rules_(view.alignment.rules),
        weights_(*view.reference.weights),
        positions_(view.reference.positions),
        max_tokens_(max_tokens),
        min_value_(min_value),
        is_chain_(view.reference.is_chain),
        least_open_(view.reference.is_rewrite ? std::numeric_limits<double>::infinity()
                                              : LEAST_OPEN * min_value),
        least_next_(min_value),
        arena_(&arena),
        branches_(&arena),
        waiting_(&arena) {
    draft_.reserve(std::min(max_tokens, 128));
    const Alignment& alignment = view.alignment;
    if (!alignment.pending && alignment.is_found()) cursor_ = alignment.offset;
    for (int kind = 0; kind < NUM_KINDS; ++kind) {
      shared_[kind] = weights_.of_kind(kind, view.rate, view.runs, view.followed);
    }
  }

  // Returns the tree that begins with some candidates, given the logit of none being right.
  Draft grow(Candidates& candidates, double none_logit) {
    std::pmr::vector<First> firsts = add_up(candidates, none_logit);
    for (size_t number = 0; number < firsts.size(); ++number) {
      const double value = firsts[number].value;
      grow_above(value);
      if (draft_.size() >= max_tokens_) break;
      Branch* branch = sprout(firsts[number]);
      const double following = number + 1 < firsts.size() ? firsts[number + 1].value : 0.0;
      least_next_ = std::max(following, min_value_);
      take(branch, value, NO_PARENT, 0);
    }
    grow_above(0.0);
    return std::move(draft_);
  }

 private:
  static constexpr double LEAST_OPEN = 4.0, NOTHING = -1.0;
  // For each time that the output came back to an offset and left it again.
  static constexpr double RETURN_LOGIT = -2.5;
  static constexpr int MOST_PATHS = 3, MOST_OPEN_STEPS = 6;

  // A candidate that agrees with the nodes up to here.
  struct Path {
    double factor;                // Of all that comes after it.
    const Continuation* factors;  // The others.
    int32_t agreed;               // Tokens before the first node, if they count on.
    int32_t first;                // Where the first node is in the text.
    int32_t stop = NO_STOP;
    int32_t resume = NO_STOP;
  };

  // What may come after a node.
  struct Branch {
    int32_t token_id;
    double weight;  // Its odds against nothing that was found.
    int32_t position;
    std::pmr::vector<Path> paths;  // What it was found as.
    double value = 0.0;            // While it waits to be a node: its chance,
    int32_t parent = NO_PARENT;
    int step = 0;  // and how many nodes lead there.
  };

  // A first token: its odds against none of the candidates, its chance, what it was found as.
  struct First {
    int32_t token_id;
    double odds, value;
    std::pmr::vector<const Candidate*> seeds;
    int number;  // Of equally likely ones the first comes first.
  };

  using Branches = std::pmr::vector<Branch*>;

  Branch* make(int32_t token_id, double weight, int32_t position) {
    return &branches_.emplace_back(
        Branch{token_id, weight, position, std::pmr::vector<Path>(arena_)});
  }

  // Weighs candidates; returns the tokens that are worth a node, the likeliest first.
  std::pmr::vector<First> add_up(Candidates& candidates, double none_logit) const {
    std::pmr::vector<Candidate*> leads(arena_);
    double total = 1.0;
    for (Candidate& each : candidates) {
      each.logit = shared_[each.kind] + each.logit - none_logit;
      each.logit += RETURN_LOGIT * count_returns(each.offset);
      const double odds = std::exp(std::min(each.logit, MOST_EXPONENT));
      total += odds;
      const auto is_same = [&](const Candidate* lead) { return lead->token_id == each.token_id; };
      const auto lead = std::find_if(leads.begin(), leads.end(), is_same);
      if (lead == leads.end()) {
        each.odds = odds;
        leads.push_back(&each);
      } else {
        (*lead)->odds += odds;
      }
    }
    std::pmr::vector<First> firsts(arena_);
    for (const Candidate* lead : leads) {
      const double value = lead->odds / total;
      if (value < min_value_) continue;
      First first{lead->token_id, lead->odds, value, std::pmr::vector<const Candidate*>(arena_),
                  int(firsts.size())};
      for (const Candidate& each : candidates) {
        if (each.token_id == first.token_id && each.offset != NOWHERE) first.seeds.push_back(&each);
      }
      firsts.push_back(std::move(first));
    }
    std::sort(firsts.begin(), firsts.end(), [](const First& one, const First& other) {
      return one.odds != other.odds ? one.odds > other.odds : one.number < other.number;
    });
    if (is_chain_ && firsts.size() > 1) firsts.erase(firsts.begin() + 1, firsts.end());
    return firsts;
  }

  // Makes nodes of all that has been found after others and is worth that much.
  void grow_above(double least) {
    while (!waiting_.empty() && most_waiting_ >= least && draft_.size() < max_tokens_) {
      Branch* branch = waiting_.back();
      waiting_.pop_back();
      most_waiting_ = waiting_.empty() ? NOTHING : waiting_.back()->value;
      take(branch, branch->value, branch->parent, branch->step);
    }
  }

  // Makes paths of what a first node was found as.
  Branch* sprout(First& first) {
    Branch* branch = make(first.token_id, first.odds, NO_POSITION);
    auto& seeds = first.seeds;
    if (seeds.size() > MOST_PATHS) {
      std::sort(seeds.begin(), seeds.end(), [](const Candidate* one, const Candidate* other) {
        return one->logit != other->logit ? one->logit > other->logit : one < other;
      });
      seeds.resize(MOST_PATHS);
    }
    for (const Candidate* each : seeds) {
      const bool is_cursor = each->offset == cursor_;
      const Continuation* factors =
          is_cursor ? &weights_.cursor : &weights_.continuations[each->kind];
      const int agreed = each->kind == PREDICTED || each->kind == OWN ? each->length : 0;
      branch->paths.push_back({find_factor(each->kind, each->logit), factors, agreed, each->offset,
                               each->stop, each->resume});
      branch->position = prefer(branch->position, find_position(each->offset));
    }
    return branch;
  }

  double find_factor(int kind, double logit) const {
    return weights_.find_factor(kind, view_.rate, view_.runs, logit);
  }

  // Makes a node of a branch, and of what comes after it as long as that is likeliest.
  void take(Branch* branch, double value, int32_t parent, int step) {
    while (true) {
      draft_.add(branch->token_id, parent, branch->position, value);
      ++step;
      if (branch->paths.empty()) {
        look_further(value, step);
        return;
      }
      if (branch->paths.size() == 1) copy(branch, value, step);
      if (step == MOST_STEPS || draft_.size() == max_tokens_) return;
      parent = draft_.size() - 1;
      const Branches next = go_on(*branch, step);
      if (next.empty()) {
        look_further(value, step);
        return;
      }
      if (next.size() > 1) {
        push_all(next, value, parent, step);
        return;
      }
      branch = next[0];
      value *= branch->weight / (1.0 + branch->weight);
      if (value < least_next_ || value < most_waiting_) {
        push(branch, value, parent, step);
        return;
      }
    }
  }

  // Finds what may come after the last node, where no path goes on.
  void look_further(double value, int step) {
    if (value < least_open_ || step > MOST_OPEN_STEPS) return;
    const int32_t last = draft_.size() - 1;
    Few<int32_t, MOST_OPEN_STEPS> drafted;
    for (int32_t node = last; node != NO_PARENT; node = draft_.parents[node]) {
      drafted.add(draft_.token_ids[node]);
    }
    std::reverse(drafted.begin(), drafted.end());
    Candidates candidates(arena_);
    find_further(view_, drafted, candidates);
    Branches found(arena_);
    for (const Candidate& each : candidates) {
      Branch* branch = find_branch(found, each.token_id);
      if (!branch) found.push_back(branch = make(each.token_id, 0.0, NO_POSITION));
      branch->weight += std::exp(std::min(each.logit, MOST_EXPONENT));
      if (each.offset != NOWHERE && branch->paths.size() < MOST_PATHS) {
        branch->paths.push_back({find_factor(OWN, each.logit), &weights_.continuations[OWN],
                                 each.length - step, each.offset - step});
        branch->position = prefer(branch->position, find_position(each.offset));
      }
    }
    push_all(found, value, last, step);
  }

  // Makes nodes of what comes after a branch of one path, as long as that is all plain: what
  // `go_on` and `take` do for one node at a time, for many. The branch, the value and the number of
  // nodes before the next are moved on; that is MOST_STEPS if something else is likelier.
  void copy(Branch* branch, double& value, int& step) {
    const Path& path = branch->paths[0];
    const Continuation& factors = *path.factors;
    const double least = std::max(least_next_, most_waiting_);
    int32_t node = draft_.size() - 1, offset = path.first + step;
    const int32_t most = std::min(max_tokens_ - 1 - node, MOST_STEPS - step);
    const int32_t end = std::min(most + offset, view_.end);
    int klass = view_.class_of(branch->token_id);
    for (; offset < end; ++offset) {
      const int32_t token_id = text_[offset];
      if (token_id == SEPARATOR || offset == path.stop || rules_.has(token_id)) return;
      if (count_returns(offset)) return;
      const int next_class = view_.class_of(token_id);
      const double weight = path.factor *
                            factors.lengths[std::min(path.agreed + step, MOST_LENGTH)] *
                            factors.steps[step] * factors.classes[klass * NUM_CLASSES + next_class];
      const double next_value = value * (weight / (1.0 + weight));
      branch->token_id = token_id;
      if (next_value < least) {
        branch->weight = weight;
        branch->position = find_position(offset);
        push(branch, next_value, node, step);
        step = MOST_STEPS;
        return;
      }
      value = next_value;
      draft_.add(token_id, node, find_position(offset), value);
      klass = next_class;
      ++node;
      ++step;
    }
  }

  void push_all(const Branches& branches, double value, int32_t parent, int step) {
    double total = 0.0;
    for (const Branch* branch : branches) total += branch->weight;
    const double share = value / (1.0 + total);
    if (is_chain_ && !branches.empty()) {
      Branch* likeliest = *std::max_element(
          branches.begin(), branches.end(),
          [](const Branch* one, const Branch* other) { return one->weight < other->weight; });
      push(likeliest, likeliest->weight * share, parent, step);
      return;
    }
    for (Branch* branch : branches) push(branch, branch->weight * share, parent, step);
  }

  // Keeps a branch for later, if it is worth it: the likeliest last, of equal ones the one that
  // waits longest.
  void push(Branch* branch, double value, int32_t parent, int step) {
    if (value < min_value_) return;
    branch->value = value;
    branch->parent = parent;
    branch->step = step;
    const auto before = std::lower_bound(
        waiting_.begin(), waiting_.end(), value,
        [](const Branch* waiting, double number) { return waiting->value < number; });
    waiting_.insert(before, branch);
    most_waiting_ = std::max(most_waiting_, value);
  }

  // What may come after a branch, `step` nodes after the output.
  Branches go_on(const Branch& branch, int step) {
    Branches found(arena_);
    const int row = view_.class_of(branch.token_id) * NUM_CLASSES;
    for (Path path : branch.paths) {
      int32_t offset = path.first + step;
      if (offset == path.stop) {
        offset = path.resume;
        path = {path.factor, path.factors, path.agreed, offset - step};
      }
      const int32_t token_id = offset < view_.end ? text_[offset] : SEPARATOR;
      if (token_id == SEPARATOR) continue;
      const Continuation& factors = *path.factors;
      double weight = path.factor * factors.lengths[std::min(path.agreed + step, MOST_LENGTH)] *
                      factors.steps[step] * factors.classes[row + view_.class_of(token_id)];
      if (const int times = count_returns(offset)) weight *= std::exp(RETURN_LOGIT * times);
      if (path.stop == NO_STOP && rules_.has(token_id)) {
        weight = replace(found, path, offset, step, weight);
      }
      add(found, token_id, weight, offset, path);
    }
    return found;
  }

  void add(Branches& branches, int32_t token_id, double weight, int32_t offset, const Path& path) {
    const int32_t position = find_position(offset);
    Branch* branch = find_branch(branches, token_id);
    if (branch) {
      branch->weight += weight;
      branch->position = prefer(branch->position, position);
    } else {
      branches.push_back(branch = make(token_id, weight, position));
    }
    branch->paths.push_back(path);
  }

  static Branch* find_branch(const Branches& branches, int32_t token_id) {
    for (Branch* branch : branches) {
      if (branch->token_id == token_id) return branch;
    }
    return nullptr;
  }

  int32_t find_position(int32_t offset) const {
    return offset < int32_t(positions_.size()) ? positions_[offset] : NO_POSITION;
  }

  int count_returns(int32_t offset) const { return view_.alignment.count_returns(offset); }

  // Adds what a rule puts there; returns the weight of what stands there.
  double replace(Branches& branches, const Path& path, int32_t offset, int step, double weight) {
    if (offset >= view_.reference.num_aligned) return weight;
    const auto rules = rules_.find(text_, offset);
    if (!rules.size()) return weight;
    const Rule& rule = rules_[rules.items[0]];
    const Path replaced{path.factor,
                        &weights_.continuations[path.factors->kind],
                        path.agreed,
                        rule.offset - step,
                        rule.offset + rule.length,
                        offset + rule.replaced.size()};
    const int sightings = rule.sightings();
    add(branches, text_[rule.offset], weight * weights_.next_rule[sightings], rule.offset,
        replaced);
    return weight * weights_.next_rule_passed[sightings];
  }

  // A position in a prediction if there is one, else one in the prompt, else none.
  static int32_t prefer(int32_t position, int32_t other) {
    return position == NO_POSITION || (position < 0 && 0 <= other) ? other : position;
  }

  const View& view_;
  const Text& text_;
  const Rules& rules_;
  const Weights& weights_;
  const std::vector<int32_t>& positions_;
  const int32_t max_tokens_;
  const double min_value_;
  const bool is_chain_;
  const double least_open_;       // Nodes are extended that are worth so much.
  int32_t cursor_ = NOWHERE - 1;  // No offset, nor NOWHERE.
  std::array<double, NUM_KINDS> shared_;
  double least_next_;  // Value of the first node that comes next, or the least value.
  Arena* arena_;
  std::pmr::deque<Branch> branches_;  // Stay where they are.
  Branches waiting_;
  double most_waiting_ = NOTHING;  // Value of the last of them.
  Draft draft_;
};

}  // namespace aligner
