// Which of a row's experts have the highest scores, for host and device: the choice of ChooseExperts, of equal scores
// too. There it is made by the selection and the sorting of the C++ library, and which of equal ones are left in front
// follows from the order in which those compare and exchange; so this goes through the same comparisons one behind the
// other. Kernels ask it only where scores are equal: else there is one answer, and many threads find it. No std:: code.
#ifndef HEADWISE_BACKEND_CUDA_RANK_EXPERTS_H_
#define HEADWISE_BACKEND_CUDA_RANK_EXPERTS_H_

#include <cstdint>

namespace headwise::cuda {

struct RankedExpert {
  double score = 0;
  int32_t expert = 0;
  int32_t is_taken = 0;  // for who looks for the highest one after the other
};

// What is no number is above all numbers.
constexpr bool IsAbove(const RankedExpert& a, const RankedExpert& b) {
  const bool a_is_none = a.score != a.score;
  const bool b_is_none = b.score != b.score;
  return (a_is_none && !b_is_none) || a.score > b.score;
}

// A row's experts, brought into order by ranges [begin, end).
struct Ranking {
  RankedExpert* all;

  constexpr bool Above(int a, int b) const { return IsAbove(all[a], all[b]); }
  constexpr void Exchange(int a, int b) const {
    const RankedExpert kept = all[a];
    all[a] = all[b];
    all[b] = kept;
  }

  // Parts a range of more than three at the middle one of three of it: what is above goes before the index that is
  // returned. The one itself stays at the beginning.
  constexpr int Part(int begin, int end) const {
    const int a = begin + 1;
    const int b = begin + (end - begin) / 2;
    const int c = end - 1;
    int middle = 0;
    if (Above(a, b)) {
      middle = Above(b, c) ? b : Above(a, c) ? c : a;
    } else {
      middle = Above(a, c) ? a : Above(b, c) ? c : b;
    }
    Exchange(begin, middle);
    int low = begin + 1;
    int high = end;
    for (;;) {
      while (Above(low, begin)) ++low;
      --high;
      while (Above(begin, high)) --high;
      if (low >= high) return low;
      Exchange(low, high);
      ++low;
    }
  }

  // Equal ones stay in their order.
  constexpr void Insert(int begin, int end) const {
    for (int next = begin + 1; next < end; ++next) {
      const RankedExpert moved = all[next];
      int to = next;
      for (; to > begin && IsAbove(moved, all[to - 1]); --to) all[to] = all[to - 1];
      all[to] = moved;
    }
  }

  // A heap of `size` from `begin` on, its lowest in front: `value` finds its place in it, from `hole` down to the end
  // and back up.
  constexpr void Sift(int begin, int hole, int size, const RankedExpert& value) const {
    RankedExpert* const heap = all + begin;
    const int top = hole;
    int child = hole;
    while (child < (size - 1) / 2) {
      child = 2 * (child + 1);
      if (IsAbove(heap[child], heap[child - 1])) --child;
      heap[hole] = heap[child];
      hole = child;
    }
    if (size % 2 == 0 && child == (size - 2) / 2) {
      child = 2 * child + 1;
      heap[hole] = heap[child];
      hole = child;
    }
    for (int parent = (hole - 1) / 2; hole > top && IsAbove(heap[parent], value); parent = (hole - 1) / 2) {
      heap[hole] = heap[parent];
      hole = parent;
    }
    heap[hole] = value;
  }
  // The highest of a range, as a heap, before `middle`.
  constexpr void KeepInHeap(int begin, int middle, int end) const {
    const int size = middle - begin;
    for (int parent = (size - 2) / 2; size >= 2 && parent >= 0; --parent) {
      Sift(begin, parent, size, RankedExpert(all[begin + parent]));
    }
    for (int next = middle; next < end; ++next) {
      if (!Above(next, begin)) continue;
      const RankedExpert value = all[next];
      all[next] = all[begin];
      Sift(begin, 0, size, value);
    }
  }
  constexpr void SortHeap(int begin, int end) const {
    for (int last = end - 1; last > begin; --last) {
      const RankedExpert value = all[last];
      all[last] = all[begin];
      Sift(begin, 0, last - begin, value);
    }
  }

  static constexpr int MostParts(int size) {  // twice the whole part of log2
    int parts = 0;
    for (; size > 1; size /= 2) parts += 2;
    return parts;
  }

  // The one at `place` is that of the sorted range, and those before it are the higher ones.
  constexpr void PartAt(int place, int end) const {
    int begin = 0;
    for (int parts = MostParts(end); end - begin > 3; --parts) {
      if (parts == 0) {
        KeepInHeap(begin, place + 1, end);
        return Exchange(begin, place);
      }
      const int cut = Part(begin, end);
      (cut <= place ? begin : end) = cut;
    }
    Insert(begin, end);
  }

  constexpr void Sort(int size) const {
    constexpr int kFew = 16;
    struct Range {
      int begin, end, parts;
    };
    // Ranges that wait: one for each part that may still be made.
    Range waiting[2 * 32] = {{0, size, MostParts(size)}};
    int num_waiting = 1;
    while (num_waiting > 0) {
      Range range = waiting[--num_waiting];
      while (range.end - range.begin > kFew) {
        if (range.parts == 0) {
          KeepInHeap(range.begin, range.end, range.end);
          SortHeap(range.begin, range.end);
          break;
        }
        --range.parts;
        const int cut = Part(range.begin, range.end);
        waiting[num_waiting++] = {cut, range.end, range.parts};
        range.end = cut;
      }
    }
    Insert(0, size);
  }
};

// Brings the `num` highest of `size` to the front, the highest first. Requires: 1 <= num <= size.
constexpr void RankHighest(RankedExpert* experts, int size, int num) {
  constexpr int kMany = 64;
  const Ranking ranking{experts};
  if (int64_t{num} * kMany <= size) {
    ranking.KeepInHeap(0, num, size);
    return ranking.SortHeap(0, num);
  }
  ranking.PartAt(num - 1, size);
  ranking.Sort(num - 1);
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_RANK_EXPERTS_H_
