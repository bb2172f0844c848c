// ZigZagAttention's assignment [zigzag §2.2]: from DuoAttention's gates, whole layers that stay full and whole layers
// that stream, so that a layer never needs two kinds of attention.
#ifndef HEADWISE_PLANNER_ZIGZAG_H_
#define HEADWISE_PLANNER_ZIGZAG_H_

#include <cstdint>
#include <vector>

namespace headwise {

struct TransportProblem {
  int64_t num_layers = 0;
  int64_t heads_per_layer = 0;
  std::vector<double> gates;       // [num_layers * heads_per_layer]
  std::vector<bool> is_retrieval;  // [same] how DuoAttention binarised them at the same sparsity
  double omega = 0.1;              // weight of a streaming head that becomes full [zigzag §2.2 eq.5]
};

// L_zigzag of a choice: turning a retrieval head into a streaming one costs its gate, the reverse earns omega times its
// gate [zigzag §2.2 eq.5].
double TransportCost(const TransportProblem& problem, const std::vector<bool>& layer_is_full);

// The layers by what making them full saves, best first; ties go to the later layer (as HeadsByGate). The first q of
// them full and the rest streaming is the cheapest of all choices of q layers.
//
// Proof. A head's term in eq. 5 depends on its own layer's kind alone, so with
//   s_i = sum of gates of the layer's retrieval heads        (the cost if layer i streams)
//   f_i = -omega * sum of gates of its streaming heads       (the cost if it is full)
// the objective is sum_i s_i - sum over full layers of (s_i - f_i). The first sum does not depend on the choice, and a
// sum of q chosen numbers is largest when they are the q largest. So sorting by s_i - f_i replaces the enumeration of
// all C(L, q) choices; the test checks it against that enumeration.
std::vector<int64_t> LayersBySaving(const TransportProblem& problem);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_ZIGZAG_H_
