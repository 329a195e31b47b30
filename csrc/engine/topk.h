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

// The best k of what was offered so far, plus some that came since the last clean-up. Offers come by rising index, so one that only
// equals the k-th best has lost.
template <class T>
struct Selection {
  Candidate<T>* items;
  int64_t count;
  T threshold;
  const int64_t* excluded;  // the next gallery row that is not for this query; they rise
  const int64_t* excluded_end;

  static int64_t capacity(int64_t k) { return k + std::max<int64_t>(k, 64); }

  void offer(T score, int64_t index, int64_t k) {
    items[count++] = {score, index};
    if (count < capacity(k)) return;
    std::nth_element(items, items + (k - 1), items + count, Better());
    count = k;
    threshold = items[k - 1].score;
  }

  // Scores of excluded rows among [first, first + columns) become -infinity, which is never returned.
  void exclude(T* scores, int64_t first, int64_t columns) {
    for (; excluded < excluded_end && *excluded < first + columns; ++excluded) {
      if (*excluded >= first) scores[*excluded - first] = -std::numeric_limits<T>::infinity();
    }
  }
};

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
        blocks_((m_ + kColumns - 1) / kColumns),
        split_gallery_(pool.threads > 1 && blocks_ >= 4 * pool.threads),
        parts_(split_gallery_ ? pool.threads : 1),
        chunk_(queries_per_chunk()),
        queries_(chunk_ * stride_),
        items_(parts_ * chunk_ * Selection<T>::capacity(k_)),
        selections_(parts_ * chunk_) {}

  void run() {
    for (int64_t first = 0; first < call_.queries.rows; first += chunk_) {
      const int64_t count = std::min(chunk_, call_.queries.rows - first);
      if (k_ > 0) search(first, count);
      parallel_for(pool_, count, [&](int64_t begin, int64_t end) {
        for (int64_t q = begin; q < end; ++q) write(first + q, q);
      });
    }
  }

 private:
  static constexpr int64_t kRows = 126;     // queries scored together: a whole number of tiles of either height
  static constexpr int64_t kColumns = 256;  // gallery rows per block: a whole number of panels

  // As many queries as candidates fit in 32 MiB, so that the gallery is packed seldom.
  int64_t queries_per_chunk() const {
    const int64_t per_query = parts_ * Selection<T>::capacity(k_) * static_cast<int64_t>(sizeof(Candidate<T>));
    return std::clamp<int64_t>((int64_t{32} << 20) / per_query, 1, std::clamp<int64_t>(call_.queries.rows, 1, 4096));
  }

  const int64_t* excluded(int64_t query) const {
    return call_.exclude_indptr == nullptr ? nullptr : call_.exclude_indices + call_.exclude_indptr[query];
  }

  void search(int64_t first, int64_t count) {
    parallel_for(pool_, count, [&](int64_t begin, int64_t end) {
      for (int64_t q = begin; q < end; ++q) {
        load_row(call_.queries, first + q, normalizes(call_.similarity), queries_.get() + q * stride_, stride_);
        for (int64_t part = 0; part < parts_; ++part) {
          const int64_t at = part * chunk_ + q;
          selections_[at] = {items_.get() + at * Selection<T>::capacity(k_), 0, -std::numeric_limits<T>::infinity(), excluded(first + q),
                             excluded(first + q + 1)};
        }
      }
    });
    if (split_gallery_) {  // each thread reads a share of a large gallery once, for all queries
      parallel_for(pool_, parts_, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          scan(0, count, blocks_ * part / parts_, blocks_ * (part + 1) / parts_, selections_.get() + part * chunk_);
        }
      });
    } else {
      parallel_for(pool_, (count + kTileRows - 1) / kTileRows, [&](int64_t begin, int64_t end) {
        scan(begin * kTileRows, std::min(end * kTileRows, count), 0, blocks_, selections_.get());
      });
    }
  }

  void scan(int64_t q_begin, int64_t q_end, int64_t block_begin, int64_t block_end, Selection<T>* selections) const {
    Buffer<T> scratch(kPanel<T> * stride_);
    Buffer<T> panels(kColumns * dim_);
    Buffer<T> scores(kRows * kColumns);
    for (int64_t block = block_begin; block < block_end; ++block) {
      const int64_t first = block * kColumns;
      const int64_t columns = std::min(kColumns, m_ - first);
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
          selections[q + r].exclude(scores.get() + r * kColumns, first, columns);
          select(selections[q + r], scores.get() + r * kColumns, first, columns);
        }
      }
    }
  }

  void select(Selection<T>& selection, const T* scores, int64_t first, int64_t columns) const {
    for (int64_t j = 0; j < columns; j += kLanes<T>) {
      if (!any(load(scores + j) > selection.threshold)) continue;
      for (int64_t lane = j; lane < std::min<int64_t>(j + kLanes<T>, columns); ++lane) {
        if (scores[lane] > selection.threshold) selection.offer(scores[lane], first + lane, k_);
      }
    }
  }

  // Joins the parts of query q, sorts the best k, pads.
  void write(int64_t query, int64_t q) {
    T* scores = static_cast<T*>(call_.scores) + query * call_.k;
    int64_t* indices = call_.indices + query * call_.k;
    int64_t found = 0;
    if (k_ > 0) {
      Selection<T>& best = selections_[q];
      for (int64_t part = 1; part < parts_; ++part) {
        // By falling order of part the indices rise, but a clean-up inside offer() reorders: take the total order, not the threshold.
        const Selection<T>& other = selections_[part * chunk_ + q];
        for (int64_t i = 0; i < other.count; ++i) {
          if (best.count + 1 >= Selection<T>::capacity(k_)) shrink(best);
          best.items[best.count++] = other.items[i];
        }
      }
      found = std::min(k_, best.count);
      std::partial_sort(best.items, best.items + found, best.items + best.count, Better());
      for (int64_t i = 0; i < found; ++i) {
        scores[i] = best.items[i].score;
        indices[i] = best.items[i].index;
      }
    }
    std::fill(scores + found, scores + call_.k, -std::numeric_limits<T>::infinity());
    std::fill(indices + found, indices + call_.k, int64_t{-1});
  }

  void shrink(Selection<T>& best) const {
    std::nth_element(best.items, best.items + (k_ - 1), best.items + best.count, Better());
    best.count = k_;
  }

  const TopkCall& call_;
  const Parallel& pool_;
  const int64_t dim_, m_, k_, stride_, blocks_;
  const bool split_gallery_;
  const int64_t parts_, chunk_;
  Buffer<T> queries_;
  Buffer<Candidate<T>> items_;
  Buffer<Selection<T>> selections_;
};

}  // namespace pairloom::PAIRLOOM_ISA
