// SPDX-License-Identifier: Apache-2.0
// Which sequences are held out by family: whole clusters, or proteins with a Gene Ontology term.
#ifndef PERFORMER_DATA_HELD_OUT_H_
#define PERFORMER_DATA_HELD_OUT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace performer {

/// Clusters of a TSV `representative<TAB>member`, as mmseqs2 writes them. Clusters of at least
/// `min_size` members are held out, of these the share `fraction`, chosen by a hash of seed and
/// representative.
class HeldOutClusters {
 public:
  /// Throws std::runtime_error `file:line: ...` for a line of another form, a member of two
  /// clusters, a file without a line.
  HeldOutClusters(const std::string& path, int64_t min_size, double fraction, uint64_t seed);

  enum class Side { kIn, kHeldOut, kUnknown };
  /// By name; of a name such as sp|P69905|HBA_HUMAN the middle part counts too.
  Side side_of(std::string_view name) const;

  int64_t num_clusters() const { return static_cast<int64_t>(held_out_.size()); }
  int64_t num_members() const { return static_cast<int64_t>(cluster_of_.size()); }
  int64_t num_held_out() const;

 private:
  std::unordered_map<std::string, uint32_t> cluster_of_;  // by member
  std::vector<bool> held_out_;                            // by cluster
};

/// Numbers of the terms GO:0000000 in a text, ascending, each once.
std::vector<uint32_t> go_terms_in(std::string_view text);
/// `GO:0000042`
std::string go_term(uint32_t number);

/// The terms of a list `GO:0003824,GO:...`, and with a graph file their descendants: lines
/// `parent<TAB>child<TAB>...<TAB>relation`, of which is_a and part_of count. Throws favor::Error
/// for a list of another form and std::runtime_error for a file of another form, or one that does
/// not have a term of the list.
std::unordered_set<uint32_t> read_held_out_terms(const std::string& list,
                                                 const std::string& graph_path);

}  // namespace performer

#endif  // PERFORMER_DATA_HELD_OUT_H_
