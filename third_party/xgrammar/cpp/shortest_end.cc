#include "shortest_end.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "earley_parser.h"

namespace xgrammar {
namespace {

// An edge costs bytes of its own and leads on to another state.
struct Edge {
  int32_t from, target, rule, times;  // rule: read `times` times; -1: one byte; -2: nothing
};

}  // namespace

// Dijkstra's algorithm from all ends at once. An edge that reads a rule counts once both its target and the rule's
// first state are settled.
EndDistances::EndDistances(const Grammar& grammar) {
  const CompactFSM& fsm = grammar->complete_fsm;
  const int states = fsm.NumStates();
  std::vector<Edge> edges;
  for (int32_t state = 0; state < states; ++state) {
    for (const auto& edge : fsm.GetEdges(state)) {
      if (edge.IsCharRange()) edges.push_back({state, edge.target, -1, 1});
      if (edge.IsEpsilon()) edges.push_back({state, edge.target, -2, 0});
      if (edge.IsRuleRef()) edges.push_back({state, edge.target, edge.GetRefRuleId(), 1});
      if (edge.IsRepeatRef()) {
        const auto repeat = fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
        const bool reads = repeat.Lower() > 0;
        edges.push_back({state, edge.target, reads ? repeat.RuleId() : -2, repeat.Lower()});
      }
    }
  }
  const int32_t rules = grammar->NumRules();
  for (int32_t rule = 0; rule < rules; ++rule) starts_.push_back(grammar->per_rule_fsms[rule]->GetFsm().GetStart());

  // The edges that a state may settle: those that lead to it, and those that read a rule that begins there.
  std::vector<int32_t> first(states + 1), used(states), of;
  const auto each = [&](const auto& visit) {
    for (int32_t e = 0; e < static_cast<int32_t>(edges.size()); ++e) {
      visit(edges[e].target, e);
      if (edges[e].rule >= 0) visit(starts_[edges[e].rule], e);
    }
  };
  each([&](int32_t state, int32_t) { ++first[state + 1]; });
  for (int state = 0; state < states; ++state) first[state + 1] += first[state];
  of.resize(first[states]);
  each([&](int32_t state, int32_t e) { of[first[state] + used[state]++] = e; });

  constexpr int32_t kMost = INT32_MAX;
  distances_.assign(states, -1);
  using Reached = std::pair<int64_t, int32_t>;
  std::priority_queue<Reached, std::vector<Reached>, std::greater<>> queue;
  for (int32_t rule = 0; rule < rules; ++rule)
    for (const int32_t end : grammar->per_rule_fsms[rule]->GetFsm().GetEnds()) queue.push({0, end});
  while (!queue.empty()) {
    const auto [distance, state] = queue.top();
    queue.pop();
    if (distances_[state] >= 0) continue;
    distances_[state] = static_cast<int32_t>(std::min<int64_t>(distance, kMost));
    for (int32_t i = first[state]; i < first[state + 1]; ++i) {
      const Edge& edge = edges[of[i]];
      if (distances_[edge.from] >= 0 || distances_[edge.target] < 0) continue;
      int64_t bytes = edge.rule == -1 ? 1 : 0;
      if (edge.rule >= 0) {
        const int32_t once = distances_[starts_[edge.rule]];
        if (once < 0) continue;
        bytes = int64_t{once} * edge.times;
      }
      queue.push({distances_[edge.target] + bytes, edge.from});
    }
  }
}

// Bytes that the rules above need once `rule`, which began at `position`, has ended. `known`: what was found before.
int64_t EarleyParser::BytesAbove(
    const EndDistances& distances, int32_t rule, int32_t position, KnownBytes* known, int depth
) const {
  constexpr int kMostDepth = 4096;  // of calls on the stack
  if (position == ParserState::kNoPrevInputPos) return 0;
  if (depth > kMostDepth) return EndDistances::kNever;
  const auto [it, is_new] = known->try_emplace({rule, position}, EndDistances::kNever);  // a rule above itself is no way
  if (!is_new) return it->second;
  int64_t best = EndDistances::kNever;
  for (const auto& [ref_rule, parent] : rule_id_to_completable_states_[position]) {
    if (ref_rule != rule || parent.rule_id < 0) continue;
    int64_t bytes = distances.OfState(parent.element_id);
    for (const auto& edge : grammar_->complete_fsm.GetEdges(parent.element_id)) {
      if (!edge.IsRepeatRef()) continue;
      const auto repeat = grammar_->complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
      if (repeat.RuleId() != rule) continue;
      const int64_t left = std::max(0, repeat.Lower() - parent.repeat_count - 1);
      bytes = distances.OfState(edge.target) + (left > 0 ? left * distances.OfRule(rule) : 0);
    }
    if (bytes >= best) continue;
    best = std::min(
        best, bytes + BytesAbove(distances, parent.rule_id, parent.rule_start_pos, known, depth + 1)
    );
  }
  return (*known)[{rule, position}] = best;
}

std::pair<int64_t, uint8_t> EarleyParser::NextToEnd(const EndDistances& distances) const {
  if (is_completed_.back()) return {0, 0};
  std::pair<int64_t, uint8_t> best = {EndDistances::kNever, 0};
  KnownBytes known;
  for (const auto& state : scanable_state_history_[scanable_state_history_.size() - 1]) {
    if (state.rule_id < 0) continue;
    for (const auto& edge : grammar_->complete_fsm.GetEdges(state.element_id)) {
      if (!edge.IsCharRange() || distances.OfState(edge.target) + 1 >= best.first) continue;
      const int64_t bytes = 1 + distances.OfState(edge.target) +
                            BytesAbove(distances, state.rule_id, state.rule_start_pos, &known);
      if (bytes < best.first) best = {bytes, static_cast<uint8_t>(edge.min)};
    }
  }
  return best;
}

std::string EarleyParser::ShortestEnd(const EndDistances& distances) {
  std::string end;
  for (int64_t last = EndDistances::kNever; !is_completed_.back();) {
    const auto [bytes, next] = NextToEnd(distances);
    if (bytes >= last || !Advance(next)) break;
    last = bytes;
    end.push_back(static_cast<char>(next));
  }
  const bool ends = is_completed_.back();
  if (!end.empty()) PopLastStates(static_cast<int32_t>(end.size()));
  return ends ? end : std::string();
}

}  // namespace xgrammar
