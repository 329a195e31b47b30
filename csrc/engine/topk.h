// The k best columns of each query, streamed: a block of the gallery is packed, scored against the queries while in cache, and only
// scores that beat a query's k-th best so far are kept.
//
// The order is total: score first, then the lower index. So the answer does not depend on how the gallery was split over threads.
// NaN and -infinity are never returned: every comparison below is false for them.
#pragma once

#include "core/buffer.h"
#include "core/parallel.h"
#include "engine/similarity.h"

namespace pairloom::PAIRLOOM_ISA {

template <class T>
struct Candidate {
  T score;
  int64_t index;
};

struct Better {
  template <class T>
  bool operator()(const Candidate<T>& a, const Candidate<T>& b) const {
    return a.score > b.score || (a.score == b.score && a.index < b.index);
  }
};

// The k-th largest of `count` numbers, none below `low`, by bisection of the numbers between: `count / kLanes` comparisons a step, and no
// branch that depends on them. Space up to whole vectors behind the numbers is overwritten.
template <class T>
T kth_largest(T* numbers, int64_t count, int64_t k, T low) {
  using Key = lane_int<T>;
  // Ordered as the numbers are: bits of negative numbers count down. (Its own inverse.)
  const auto turn = [](Key bits) { return bits ^ ((bits >> (8 * sizeof(T) - 1)) & std::numeric_limits<Key>::max()); };
  const auto key = [&](T x) {
    Key bits;
    std::memcpy(&bits, &x, sizeof bits);
    return turn(bits);
  };
  const auto number = [&](Key x) {
    const Key bits = turn(x);
    T out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
  };
  const int64_t whole = vector_width<T>(count);
  std::fill(numbers + count, numbers + whole, -std::numeric_limits<T>::infinity());
  vec<T> most = splat(low);
  for (int64_t i = 0; i < whole; i += kLanes<T>) most = larger(most, load(numbers + i));
  // At least k are above `below`, fewer than k are above `above`.
  Key below = key(low) - 1, above = key(max_lanes<T>(most));
  while (below + 1 < above) {
    const Key middle = (below & above) + ((below ^ above) >> 1);  // their mean, without overflow
    mask<T> hits{};
    for (int64_t i = 0; i < whole; i += kLanes<T>) hits += load(numbers + i) > number(middle);
    (count_lanes<T>(hits) >= k ? below : above) = middle;
  }
  return number(above);
}

// The best k of what was offered so far, plus some that came since the last clean-up, by rising index. So an offer that only equals the
// k-th best has lost.
template <class T>
struct Selection {
  T* scores;
  int64_t* indices;
  int64_t count;
  T threshold;
  const int64_t* excluded;  // the next gallery row that is not for this query; they rise
  const int64_t* excluded_end;

  // So many that clean-ups are seldom, and whole vectors, one more than has to be free for an offer.
  static int64_t capacity(int64_t k) { return vector_width<T>(k + std::max<int64_t>(k, 64)) + kLanes<T>; }

  // Numbers at[lane] of the lanes in `hits`, which become candidates first + lane. There must be room.
  PAIRLOOM_INLINE void offer(const T* at, int64_t first, uint32_t hits) {
    int64_t end = count;  // in a register: stores to `indices` could mean `count`
    for (T* s = scores; hits != 0; hits &= hits - 1, ++end) {
      const int lane = __builtin_ctz(hits);
      s[end] = at[lane];
      indices[end] = first + lane;
    }
    count = end;
  }

  // Down to k where fewer than `room` places are free.
  void make_room(int64_t room, int64_t k) {
    if (count + room > capacity(k)) shrink(k);
  }

  void shrink(int64_t k) {
    if (count <= k) return;
    threshold = kth_largest(scores, count, k, threshold);
    const T last = threshold;
    T* const s = scores;
    int64_t* const ids = indices;
    int64_t ties = k, kept = 0;
    for (int64_t i = 0; i < count; ++i) ties -= s[i] > last;  // what is left: so many that equal the k-th best, the first ones, stay
    for (int64_t i = 0, end = count; i < end; ++i) {
      const T score = s[i];
      const bool tie = (score == last) & (ties > 0);
      ties -= tie;
      s[kept] = score;
      ids[kept] = ids[i];
      kept += (score > last) | tie;
    }
    count = kept;
  }

  // Scores of excluded rows among [first, first + columns) become -infinity, which is never returned.
  void exclude(T* block, int64_t first, int64_t columns) {
    for (; excluded < excluded_end && *excluded < first + columns; ++excluded) {
      if (*excluded >= first) block[*excluded - first] = -std::numeric_limits<T>::infinity();
    }
  }
};

// The best k of the parts of a gallery, `stride` apart and in its order, to `found`, in any order. Returns how many there are.
template <class T>
int64_t join_parts(Selection<T>* selections, int64_t stride, int64_t parts, int64_t k, Candidate<T>* found) {
  if (k == 0) return 0;
  Selection<T>& best = selections[0];
  for (int64_t part = 1; part < parts; ++part) {
    const Selection<T>& other = selections[part * stride];
    for (int64_t i = 0; i < other.count; ++i) {
      if (!(other.scores[i] > best.threshold)) continue;
      best.make_room(1, k);
      best.offer(other.scores + i, other.indices[i], 1);
    }
  }
  best.shrink(k);
  for (int64_t i = 0; i < best.count; ++i) found[i] = {best.scores[i], best.indices[i]};
  return best.count;
}

// Best first; what is missing of k is -infinity and -1.
template <class T>
void write_answer(Candidate<T>* found, int64_t count, int64_t k, T* scores, int64_t* indices) {
  std::sort(found, found + count, Better());
  for (int64_t i = 0; i < count; ++i) {
    scores[i] = found[i].score;
    indices[i] = found[i].index;
  }
  std::fill(scores + count, scores + k, -std::numeric_limits<T>::infinity());
  std::fill(indices + count, indices + k, int64_t{-1});
}

template <class T>
class Topk {
 public:
  Topk(const TopkCall& call, const Parallel& pool)
      : call_(call),
        pool_(pool),
        dim_(call.queries.dim),
        m_(call.gallery.rows),
        k_(std::min(call.k, call.gallery.rows)),
        stride_(padded_stride<T>(call.queries.dim)),
        parts_(parts_of_gallery()),
        chunk_(queries_per_chunk()),
        queries_(chunk_ * stride_),
        scores_(parts_ * chunk_ * Selection<T>::capacity(k_)),
        indices_(parts_ * chunk_ * Selection<T>::capacity(k_)),
        selections_(parts_ * chunk_) {}

  void run() {
    for (int64_t first = 0; first < call_.queries.rows; first += chunk_) {
      const int64_t count = std::min(chunk_, call_.queries.rows - first);
      if (k_ > 0) search(first, count);
      spread(count, k_, [&](int64_t begin, int64_t end) {
        Buffer<Candidate<T>> sorted(k_);
        for (int64_t q = begin; q < end; ++q) write(first + q, q, sorted.get());
      });
    }
  }

 private:
  static constexpr int64_t kRows = 126;     // queries scored together: a whole number of tiles of either height
  static constexpr int64_t kColumns = 256;  // gallery rows per block: a whole number of panels

  // Threads share the gallery where it is large, and where there are too few queries to share; unless that is not worth waking them.
  int64_t parts_of_gallery() const {
    const bool large = m_ >= 4 * pool_.threads * kColumns;
    const bool few = call_.queries.rows < 2 * pool_.threads * kTileRows;
    return large || few ? std::clamp<int64_t>(m_ * dim_ >> 16, 1, pool_.threads) : 1;
  }

  // As many queries as candidates fit in 32 MiB, so that the gallery is packed seldom.
  int64_t queries_per_chunk() const {
    const int64_t per_query = parts_ * Selection<T>::capacity(k_) * static_cast<int64_t>(sizeof(T) + sizeof(int64_t));
    return std::clamp<int64_t>((int64_t{32} << 20) / per_query, 1, std::clamp<int64_t>(call_.queries.rows, 1, 4096));
  }

  // f(begin, end) over queries that take so many steps each; here, if that is not worth waking threads.
  template <class F>
  void spread(int64_t count, int64_t steps, const F& f) const {
    if (count * steps < int64_t{1} << 14) {
      f(0, count);
    } else {
      parallel_for(pool_, count, f);
    }
  }

  const int64_t* excluded(int64_t query) const {
    return call_.exclude_indptr == nullptr ? nullptr : call_.exclude_indices + call_.exclude_indptr[query];
  }

  void search(int64_t first, int64_t count) {
    spread(count, dim_, [&](int64_t begin, int64_t end) {
      for (int64_t q = begin; q < end; ++q) {
        load_row(call_.queries, first + q, normalizes(call_.similarity), queries_.get() + q * stride_, stride_);
        for (int64_t part = 0; part < parts_; ++part) {
          const int64_t at = part * chunk_ + q;
          const int64_t place = at * Selection<T>::capacity(k_);
          selections_[at] = {scores_.get() + place, indices_.get() + place, 0, -std::numeric_limits<T>::infinity(),
                             excluded(first + q),   excluded(first + q + 1)};
        }
      }
    });
    const int64_t panels = panel_count<T>(m_);
    if (parts_ > 1) {  // each thread reads a share of a large gallery once, for all queries
      parallel_for(pool_, parts_, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          scan(0, count, panels * part / parts_, panels * (part + 1) / parts_, selections_.get() + part * chunk_);
        }
      });
    } else {
      parallel_for(pool_, (count + kTileRows - 1) / kTileRows, [&](int64_t begin, int64_t end) {
        scan(begin * kTileRows, std::min(end * kTileRows, count), 0, panels, selections_.get());
      });
    }
  }

  // Queries against whole panels of the gallery.
  void scan(int64_t q_begin, int64_t q_end, int64_t panel_begin, int64_t panel_end, Selection<T>* selections) const {
    const int64_t end = std::min(panel_end * kPanel<T>, m_);
    Buffer<T> scratch(kPanel<T> * stride_);
    Buffer<T> panels(kColumns * dim_);
    Buffer<T> scores(kRows * kColumns);
    for (int64_t first = panel_begin * kPanel<T>; first < end; first += kColumns) {
      const int64_t columns = std::min(kColumns, end - first);
      const bool few = q_end - q_begin <= kTileRows;
      if (!few) pack_rows(call_.gallery, call_.similarity, first, columns, stride_, scratch.get(), panels.get());
      for (int64_t q = q_begin; q < q_end; q += kRows) {
        const int64_t count = std::min(kRows, q_end - q);
        const T* rows = queries_.get() + q * stride_;
        if (few) {
          similarity_few(call_.similarity, rows, stride_, count, call_.gallery, first, columns, scratch.get(), scores.get(), kColumns);
        } else {
          similarity_block(call_.similarity, rows, stride_, count, panels.get(), dim_, panel_count<T>(columns), scores.get(), kColumns);
        }
        for (int64_t r = 0; r < count; ++r) {
          T* row = scores.get() + r * kColumns;
          std::fill(row + columns, row + kColumns, -std::numeric_limits<T>::infinity());
          selections[q + r].exclude(row, first, columns);
          select(selections[q + r], row, first);
        }
      }
    }
  }

  void select(Selection<T>& selection, const T* scores, int64_t first) const {
    for (int64_t panel = 0; panel < kColumns; panel += kPanel<T>) {
      // Mostly nothing passes: one test for a panel.
      vec<T> most = splat(selection.threshold);
      for (int64_t j = 0; j < kPanel<T>; j += kLanes<T>) most = larger(most, load(scores + panel + j));
      if (!any(most > selection.threshold)) continue;
      for (int64_t j = panel; j < panel + kPanel<T>; j += kLanes<T>) {
        selection.make_room(kLanes<T>, k_);
        selection.offer(scores + j, first + j, lane_bits(load(scores + j) > selection.threshold));
      }
    }
  }

  void write(int64_t query, int64_t q, Candidate<T>* sorted) {
    const int64_t found = join_parts(selections_.get() + q, chunk_, parts_, k_, sorted);
    write_answer(sorted, found, call_.k, static_cast<T*>(call_.scores) + query * call_.k, call_.indices + query * call_.k);
  }

  const TopkCall& call_;
  const Parallel& pool_;
  const int64_t dim_, m_, k_, stride_, parts_, chunk_;
  Buffer<T> queries_;
  Buffer<T> scores_;
  Buffer<int64_t> indices_;
  Buffer<Selection<T>> selections_;
};

}  // namespace pairloom::PAIRLOOM_ISA
