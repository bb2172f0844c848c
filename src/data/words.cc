#include "data/words.h"

#include <array>
#include <set>

#include "base/check.h"

namespace headwise {
namespace {

// Names of lines are made of the first 100 (data/lines.cc).
constexpr auto kNouns = std::to_array<std::string_view>(
    {"anchor",   "apron",     "barn",     "basket",   "beacon",     "bicycle",  "blanket",  "bottle",    "bridge",
     "bucket",   "button",    "cabin",    "candle",   "canyon",     "carpet",   "castle",   "cellar",    "chimney",
     "cliff",    "clock",     "cottage",  "cradle",   "desert",     "drawer",   "engine",   "falcon",    "feather",
     "ferry",    "fiddle",    "forest",   "fountain", "garden",     "gate",     "glacier",  "hammer",    "harbour",
     "harvest",  "hedge",     "helmet",   "heron",    "island",     "jacket",   "kettle",   "kitchen",   "ladder",
     "lagoon",   "lantern",   "ledger",   "library",  "lighthouse", "lizard",   "magnet",   "maple",     "market",
     "meadow",   "mirror",    "mountain", "museum",   "needle",     "notebook", "oasis",    "orchard",   "otter",
     "oven",     "paddle",    "parcel",   "pebble",   "pencil",     "piano",    "pigeon",   "pillow",    "pocket",
     "pottery",  "puzzle",    "quarry",   "rabbit",   "railway",    "ribbon",   "river",    "rocket",    "saddle",
     "sailor",   "shelter",   "shovel",   "statue",   "stove",      "tavern",   "teapot",   "temple",    "thimble",
     "thunder",  "tower",     "tractor",  "tunnel",   "valley",     "village",  "violin",   "wagon",     "whistle",
     "window",   "acorn",     "actor",    "album",    "alley",      "almond",   "angel",    "ankle",     "antler",
     "apple",    "arbour",    "archer",   "armour",   "arrow",      "artist",   "attic",    "avenue",    "axle",
     "badge",    "bagel",     "baker",    "balcony",  "ballad",     "bandage",  "banjo",    "banner",    "barley",
     "barrel",   "beaver",    "bedroom",  "beehive",  "beetle",     "bell",     "belt",     "bench",     "berry",
     "bishop",   "bison",     "blossom",  "blouse",   "boat",       "bonfire",  "book",     "boot",      "border",
     "boulder",  "bowl",      "bracelet", "branch",   "brass",      "bread",    "breeze",   "brick",     "broom",
     "brother",  "bronze",    "brush",    "bubble",   "buckle",     "buffalo",  "bugle",    "bullet",    "butcher",
     "butter",   "butterfly", "cable",    "cactus",   "camel",      "camera",   "canal",    "canoe",     "canvas",
     "captain",  "caravan",   "card",     "carriage", "carrot",     "cart",     "cavern",   "cedar",     "ceiling",
     "chain",    "chair",     "chalk",    "chapel",   "chariot",    "cheese",   "cherry",   "chess",     "chestnut",
     "chicken",  "child",     "chisel",   "choir",    "cider",      "cinema",   "circus",   "citizen",   "clay",
     "cloak",    "cloth",     "cloud",    "clover",   "coach",      "coal",     "coast",    "cobweb",    "coconut",
     "coffee",   "coin",      "collar",   "comb",     "comet",      "compass",  "coral",    "corn",      "corner",
     "cotton",   "couch",     "cousin",   "cow",      "crab",       "crane",    "crayon",   "cricket",   "crown",
     "crystal",  "cuckoo",    "cup",      "cupboard", "curtain",    "cushion",  "daisy",    "dancer",    "dawn",
     "deer",     "dentist",   "diamond",  "diary",    "dinner",     "diver",    "doctor",   "dolphin",   "donkey",
     "door",     "dove",      "dragon",   "drum",     "duck",       "dune",     "dust",     "eagle",     "earring",
     "easel",    "echo",      "eel",      "elbow",    "elephant",   "elm",      "ember",    "emerald",   "envelope",
     "fabric",   "factory",   "farmer",   "fence",    "fern",       "fig",      "finger",   "fireplace", "fisher",
     "flag",     "flame",     "flask",    "flint",    "flood",      "flour",    "flower",   "flute",     "fog",
     "fork",     "fossil",    "fox",      "frame",    "freight",    "frog",     "frost",    "fruit",     "funnel",
     "furnace",  "galaxy",    "gallery",  "garlic",   "geese",      "ginger",   "giraffe",  "glass",     "glove",
     "goat",     "goose",     "granite",  "grape",    "grass",      "gravel",   "guitar",   "gull",      "hail",
     "hallway",  "hamlet",    "harp",     "hat",      "hawk",       "hazel",    "hill",     "hinge",     "honey",
     "hood",     "hook",      "horizon",  "horn",     "horse",      "hotel",    "hound",    "iceberg",   "icicle",
     "inkwell",  "inn",       "insect",   "iron",     "ivy",        "jackal",   "jar",      "jasmine",   "jaw",
     "jelly",    "jewel",     "jigsaw",   "jug",      "juice",      "jungle",   "kayak",    "kennel",    "kernel",
     "key",      "kitten",    "knee",     "knife",    "knight",     "knot",     "lace",     "lake",      "lamb",
     "lamp",     "lawn",      "leaf",     "leather",  "lemon",      "lens",     "leopard",  "letter",    "lichen",
     "lilac",    "lily",      "linen",    "lion",     "loaf",       "lobster",  "locket",   "loom",      "lorry",
     "lumber",   "lute",      "mackerel", "magpie",   "mansion",    "map",      "marble",   "mast",      "mattress",
     "melon",    "merchant",  "meteor",   "mill",     "mint",       "mitten",   "moat",     "mole",      "monkey",
     "moon",     "moose",     "mosaic",   "moss",     "moth",       "motor",    "mouse",    "mud",       "mule",
     "mushroom", "mustard",   "nail",     "napkin",   "neck",       "nest",     "net",      "nettle",    "nickel",
     "noodle",   "nurse",     "nutmeg",   "oak",      "oar",        "oat",      "ocean",    "olive",     "onion",
     "opal",     "opera",     "orange",   "orchid",   "organ",      "ostrich",  "owl",      "oyster",    "page",
     "pail",     "paint",     "palace",   "palm",     "pancake",    "panda",    "panther",  "paper",     "parade",
     "parrot",   "parsley",   "pasture",  "path",     "pavement",   "peach",    "peacock",  "pear",      "pearl",
     "pepper",   "perfume",   "petal",    "pheasant", "picnic",     "pier",     "pilgrim",  "pilot",     "pine",
     "pipe",     "plank",     "planet",   "plate",    "plough",     "plum",     "poet",     "pond",      "pony",
     "poplar",   "poppy",     "porch",    "porridge", "portrait",   "potato",   "prairie",  "prince",    "printer",
     "prism",    "pudding",   "pump",     "pumpkin",  "puppet",     "quail",    "quartz",   "queen",     "quill",
     "quilt",    "radio",     "radish",   "raft",     "rain",       "raisin",   "rake",     "ram",       "raven",
     "reed",     "reef",      "rice",     "ring",     "road",       "robin",    "rock",     "roof",      "room",
     "rooster",  "root",      "rope",     "rose",     "rudder",     "ruby",     "rug",      "sack",      "salmon",
     "salt",     "sand",      "sandal",   "satchel",  "sauce",      "saucer",   "scarf",    "school",    "scissors",
     "scooter",  "sea",       "seal",     "seed",     "shadow",     "shark",    "shawl",    "sheep",     "shell",
     "shepherd", "shield",    "ship",     "shirt",    "shoe",       "shore",    "shoulder", "shrimp",    "silk",
     "sister",   "skate",     "sketch",   "skirt",    "sky",        "sledge",   "sleeve",   "slipper",   "smoke",
     "snail",    "snow",      "soap",     "sock",     "soil",       "soldier",  "song",     "soup",      "spade",
     "sparrow",  "spear",     "spider",   "spinach",  "spoon",      "spring",   "spruce",   "squirrel",  "stable",
     "stair",    "stamp",     "star",     "station",  "stem",       "stone",    "stool",    "storm",     "stork",
     "straw",    "stream",    "street",   "sugar",    "suitcase",   "summer",   "sunset",   "swan",      "sweater",
     "swing",    "sword",     "table",    "tailor",   "tape",       "tea",      "teacher",  "tent",      "theatre",
     "thistle",  "thorn",     "thread",   "throne",   "thumb",      "ticket",   "tiger",    "tile",      "timber",
     "toad",     "toast",     "tomato",   "tongue",   "tooth",      "torch",    "tortoise", "town",      "toy",
     "trail",    "train",     "tray",     "treasure", "tree",       "trellis",  "trout",    "truck",     "trumpet",
     "trunk",    "tulip",     "turnip",   "turtle",   "tutor",      "twig",     "umbrella", "uncle",     "unicorn",
     "vase",     "vest",      "vicar",    "vine",     "vinegar",    "visitor",  "volcano",  "voyage",    "vulture",
     "waist",    "waiter",    "wall",     "wallet",   "walnut",     "walrus",   "wardrobe", "water",     "wave",
     "wax",      "weasel",    "weaver",   "well",     "whale",      "wheat",    "wheel",    "whisker",   "widow",
     "willow",   "winter",    "wizard",   "wolf",     "wood",       "wool",     "worm",     "wreath",    "wrist",
     "writer",   "yacht",     "yard",     "yarn",     "zebra",      "zipper"});

constexpr std::string_view kConsonants = "bdfgjklmnprstvwz";
constexpr std::string_view kVowels = "aeiou";
constexpr uint64_t kNumSyllables = kConsonants.size() * kVowels.size();
constexpr int kSyllablesPerWord = 3;

}  // namespace

const int64_t kMaxMadeUpWords = static_cast<int64_t>(kNumSyllables * kNumSyllables * kNumSyllables);

std::vector<uint64_t> DrawDistinct(Rng& rng, int64_t count, uint64_t limit) {
  HW_CHECK(count >= 0 && static_cast<uint64_t>(count) <= limit, "{} of {}", count, limit);
  std::vector<uint64_t> drawn;
  std::set<uint64_t> seen;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const uint64_t value = rng.Below(limit);
    if (seen.insert(value).second) drawn.push_back(value);
  }
  return drawn;
}

std::span<const std::string_view> PlainNouns() {
  return kNouns;
}

std::vector<std::string> DrawMadeUpWords(Rng& rng, int64_t count) {
  std::vector<std::string> words;
  for (uint64_t id : DrawDistinct(rng, count, static_cast<uint64_t>(kMaxMadeUpWords))) {
    std::string& word = words.emplace_back();
    for (int i = 0; i < kSyllablesPerWord; ++i) {
      const uint64_t syllable = id % kNumSyllables;
      id /= kNumSyllables;
      word += kConsonants[syllable / kVowels.size()];
      word += kVowels[syllable % kVowels.size()];
    }
  }
  return words;
}

}  // namespace headwise
