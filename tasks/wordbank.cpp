#include "tasks/wordbank.h"

namespace kveval {
namespace {

constexpr std::string_view kAdjectives[] = {
    "amber",     "azure",    "crimson",  "scarlet",  "violet",    "indigo",    "ivory",    "ebony",
    "golden",    "silver",   "bronze",   "cobalt",   "emerald",   "jade",      "ruby",     "sapphire",
    "topaz",     "coral",    "maroon",   "beige",    "lilac",     "turquoise", "teal",     "ochre",
    "russet",    "tawny",    "umber",    "saffron",  "magenta",   "auburn",    "pearly",   "velvet",
    "silken",    "woolen",   "marble",   "granite",  "crystal",   "glassy",    "frosty",   "icy",
    "snowy",     "stormy",   "misty",    "foggy",    "lunar",     "solar",     "stellar",  "cosmic",
    "polar",     "arctic",   "tropical", "alpine",   "brave",     "bold",      "timid",    "gentle",
    "fierce",    "humble",   "proud",    "noble",    "loyal",     "honest",    "clever",   "witty",
    "cunning",   "nimble",   "agile",    "swift",    "rapid",     "sluggish",  "lazy",     "zealous",
    "ardent",    "fervent",  "mellow",   "jolly",    "merry",     "cheery",    "gloomy",   "somber",
    "solemn",    "earnest",  "sincere",  "candid",   "frank",     "blunt",     "brash",    "bashful",
    "coy",       "demure",   "prim",     "dapper",   "elegant",   "graceful",  "stately",  "regal",
    "royal",     "imperial", "rustic",   "feral",    "tame",      "savage",    "docile",   "placid",
    "serene",    "tranquil", "restless", "frantic",  "hectic",    "dizzy",     "drowsy",   "sleepy",
    "wakeful",   "vivid",    "lurid",    "dull",     "drab",      "bland",     "spicy",    "salty",
    "sour",      "bitter",   "tangy",    "zesty",    "savory",    "juicy",     "crispy",   "crunchy",
    "chewy",     "creamy",   "buttery",  "greasy",   "oily",      "bubbly",    "fizzy",    "foamy",
    "muddy",     "sandy",    "rocky",    "grassy",   "leafy",     "mossy",     "thorny",   "prickly",
    "spiky",     "jagged",   "rugged",   "smooth",   "slick",     "sleek",     "glossy",   "shiny",
    "sparkling", "gleaming", "glowing",  "radiant",  "luminous",  "dazzling",  "dim",      "murky",
    "opaque",    "hollow",   "sturdy",   "brittle",  "flimsy",    "fragile",   "delicate", "supple",
    "limber",    "rigid",    "stiff",    "elastic",  "curly",     "wavy",      "twisted",  "crooked",
    "slanted",   "oblique",  "round",    "oval",     "conical",   "cubic",     "spiral",   "angular",
    "tapered",   "ribbed",   "striped",  "spotted",  "speckled",  "dappled",   "mottled",  "plaid",
    "floral",    "lacy",     "frilly",   "quilted",  "knitted",   "braided",   "woven",    "tattered",
    "faded",     "rusty",    "polished", "gilded",   "carved",    "forged",    "molten",   "frozen",
    "toasted",   "smoked",   "pickled",  "candied",  "minted",    "fragrant",  "pungent",  "musky",
    "earthy",    "briny",    "pristine", "spotless", "tidy",      "cluttered", "messy",    "chaotic",
    "rhythmic",  "melodic",  "harmonic", "sonorous", "raucous",   "muffled",   "hushed",   "silent",
    "mute",      "terse",    "cryptic",  "arcane",   "mystic",    "obscure",   "fabled",   "mythic",
    "epic",      "heroic",   "gallant",  "valiant",  "intrepid",  "fearless",  "plucky",   "feisty",
    "hardy",     "robust",   "stalwart", "burly",    "lanky",     "petite",    "dainty",   "colossal",
    "gigantic",  "titanic",  "immense",  "shaggy",   "fluffy",    "fuzzy",     "velvety",  "plush",
    "padded",    "sunken",   "floating", "drifting", "whirling",  "roaming",   "soaring",  "leaping",
    "dancing",   "humming",  "purring",  "roaring",  "galloping", "thrifty",   "frugal",   "lavish",
    "sumptuous", "ornate",   "gaudy",    "quaint",   "dusky",     "pallid",    "ashen",    "blazing",
    "scorched",  "sodden",   "soggy"};

constexpr std::string_view kNouns[] = {
    "falcon",     "eagle",      "hawk",    "osprey",    "heron",    "egret",     "stork",    "pelican",
    "puffin",     "penguin",    "parrot",  "toucan",    "macaw",    "finch",     "sparrow",  "robin",
    "wren",       "thrush",     "lark",    "magpie",    "raven",    "crow",      "owl",      "kestrel",
    "condor",     "vulture",    "ostrich", "emu",       "kiwi",     "peacock",   "pheasant", "quail",
    "partridge",  "grouse",     "turkey",  "goose",     "swan",     "otter",     "beaver",   "badger",
    "weasel",     "ferret",     "marten",  "mink",      "stoat",    "fox",       "wolf",     "coyote",
    "jackal",     "hyena",      "lion",    "tiger",     "leopard",  "cheetah",   "panther",  "jaguar",
    "lynx",       "bobcat",     "cougar",  "panda",     "koala",    "wombat",    "kangaroo", "wallaby",
    "possum",     "lemur",      "monkey",  "baboon",    "gorilla",  "gibbon",    "squirrel", "chipmunk",
    "marmot",     "gopher",     "hamster", "gerbil",    "mouse",    "vole",      "shrew",    "mole",
    "hedgehog",   "porcupine",  "rabbit",  "hare",      "bison",    "buffalo",   "yak",      "camel",
    "llama",      "alpaca",     "giraffe", "zebra",     "donkey",   "mule",      "pony",     "antelope",
    "gazelle",    "impala",     "elk",     "moose",     "reindeer", "caribou",   "walrus",   "seal",
    "dolphin",    "whale",      "orca",    "narwhal",   "manatee",  "shark",     "marlin",   "tuna",
    "salmon",     "trout",      "perch",   "pike",      "carp",     "catfish",   "sturgeon", "herring",
    "sardine",    "anchovy",    "lobster", "crab",      "shrimp",   "squid",     "octopus",  "oyster",
    "clam",       "mussel",     "snail",   "slug",      "turtle",   "tortoise",  "lizard",   "gecko",
    "iguana",     "cobra",      "python",  "viper",     "adder",    "toad",      "frog",     "newt",
    "salamander", "cricket",    "beetle",  "moth",      "wasp",     "hornet",    "mantis",   "dragonfly",
    "firefly",    "ladybug",    "spider",  "scorpion",  "anchor",   "anvil",     "arrow",    "banjo",
    "barrel",     "beacon",     "bellows", "bonnet",    "buckle",   "candle",    "cannon",   "canoe",
    "carafe",     "castle",     "cello",   "chalice",   "chariot",  "chisel",    "clarinet", "cloak",
    "compass",    "cradle",     "crown",   "cymbal",    "dagger",   "drum",      "easel",    "fiddle",
    "flagon",     "flute",      "funnel",  "gauntlet",  "goblet",   "gondola",   "gong",     "guitar",
    "hammer",     "hammock",    "harp",    "helmet",    "hinge",    "hourglass", "kettle",   "kite",
    "ladle",      "lantern",    "lute",    "mallet",    "mandolin", "mitten",    "necklace", "oboe",
    "paddle",     "pendant",    "piano",   "puppet",    "quill",    "raft",      "rattle",   "saddle",
    "satchel",    "scepter",    "scroll",  "shield",    "sickle",   "spindle",   "statue",   "sundial",
    "sword",      "tambourine", "teapot",  "telescope", "thimble",  "torch",     "trowel",   "trumpet",
    "tuba",       "ukulele",    "urn",     "vase",      "violin",   "whistle",   "windmill", "wrench",
    "yacht",      "zither",     "acorn",   "almond",    "apricot",  "bamboo",    "cactus",   "cedar",
    "cherry",     "clover",     "daisy",   "fern",      "ginger",   "hazel",     "iris",     "ivy",
    "jasmine",    "juniper",    "laurel",  "lemon",     "lotus",    "magnolia",  "maple",    "mango",
    "nutmeg",     "olive",      "orchid",  "papaya",    "peony",    "plum",      "poppy",    "pumpkin",
    "quince",     "sequoia",    "spruce",  "sycamore",  "thistle",  "tulip",     "walnut",   "willow",
    "glacier",    "volcano",    "comet",   "meteor",    "nebula",   "quasar",    "zephyr"};

constexpr std::string_view kPerson[] = {
    "librarian",   "gardener",  "carpenter",    "teacher",   "baker",      "farmer",    "clerk",
    "driver",      "nurse",     "doctor",       "painter",   "writer",     "student",   "neighbor",
    "cook",        "tailor",    "mechanic",     "engineer",  "pilot",      "sailor",    "postman",
    "journalist",  "musician",  "lawyer",       "surveyor",  "manager",    "visitor",   "traveler",
    "shopkeeper",  "fisherman", "photographer", "historian", "plumber",    "janitor",   "dentist",
    "electrician", "guard",     "waiter",       "cashier",   "officer",    "mayor",     "builder",
    "porter",      "editor",    "conductor",    "inspector", "apprentice", "assistant", "caretaker",
    "stranger"};

constexpr std::string_view kPeople[] = {"children",   "neighbors", "workers",   "students", "villagers",
                                        "visitors",   "tourists",  "teachers",  "farmers",  "travelers",
                                        "volunteers", "residents", "players",   "singers",  "customers",
                                        "passengers", "guests",    "relatives", "friends",  "colleagues",
                                        "merchants",  "engineers", "cyclists",  "painters", "reporters"};

constexpr std::string_view kDid[] = {
    "repaired",     "cleaned",   "carried",   "moved",    "opened",   "closed",    "counted",  "measured",
    "ordered",      "delivered", "collected", "borrowed", "returned", "sold",      "bought",   "described",
    "sketched",     "examined",  "sorted",    "labeled",  "packed",   "inspected", "admired",  "mentioned",
    "photographed", "replaced",  "cleared",   "noticed",  "found",    "lifted",    "folded",   "washed",
    "dried",        "wrapped",   "covered",   "emptied",  "filled",   "finished",  "prepared", "adjusted",
    "arranged",     "stacked",   "weighed",   "drew",     "watched",  "remembered"};

constexpr std::string_view kThing[] = {
    "table",    "chair",      "window",   "door",     "fence",  "letter",    "book",    "map",
    "report",   "calendar",   "notebook", "box",      "bag",    "ticket",    "bottle",  "plate",
    "bowl",     "cup",        "clock",    "radio",    "engine", "bicycle",   "car",     "boat",
    "cart",     "shelf",      "drawer",   "curtain",  "lamp",   "sofa",      "desk",    "mattress",
    "blanket",  "towel",      "jacket",   "coat",     "hat",    "parcel",    "package", "newspaper",
    "magazine", "photograph", "picture",  "poster",   "sign",   "catalogue", "receipt", "invoice",
    "menu",     "suitcase",   "backpack", "keyboard", "camera", "printer",   "heater",  "oven",
    "stove",    "sink",       "bench",    "ladder",   "rope",   "bucket",    "basket",  "broom",
    "tray",     "jar",        "lid",      "tool",     "wheel",  "tire",      "mirror",  "carpet",
    "pillow"};

constexpr std::string_view kQuality[] = {
    "old",    "new",     "small",    "large", "quiet",  "narrow",   "wide",     "long",    "short",
    "heavy",  "light",   "clean",    "empty", "simple", "ordinary", "familiar", "distant", "local",
    "public", "private", "pleasant", "plain", "modern", "worn",     "cheap",    "useful",  "tall",
    "deep",   "square",  "grey",     "green", "blue",   "white",    "brown",    "yellow",  "odd",
    "famous", "nearby",  "spare",    "rough", "neat",   "pretty",   "shabby"};

constexpr std::string_view kMood[] = {
    "careful", "curious",     "patient", "friendly", "tired",     "thoughtful", "helpful",
    "young",   "experienced", "serious", "cheerful", "polite",    "punctual",   "anxious",
    "busy",    "grumpy",      "hungry",  "lonely",   "lucky",     "modest",     "nervous",
    "relaxed", "retired",     "shy",     "strict",   "talkative", "worried",    "calm"};

constexpr std::string_view kPlace[] = {
    "market",   "station",  "harbor",   "library", "school",   "garden",    "office", "museum",  "hospital",
    "hotel",    "kitchen",  "workshop", "theater", "village",  "valley",    "hill",   "river",   "lake",
    "forest",   "park",     "square",   "street",  "corner",   "courtyard", "farm",   "mill",    "warehouse",
    "factory",  "church",   "hall",     "yard",    "meadow",   "bakery",    "bridge", "road",    "path",
    "crossing", "pharmacy", "stadium",  "campus",  "bookshop", "cafe",      "cellar", "balcony", "terrace",
    "entrance", "fountain", "tower",    "pier",    "canal",    "quarry",    "orchard"};

constexpr std::string_view kTime[] = {"morning", "afternoon", "evening", "night",     "week",    "month",
                                      "spring",  "summer",    "autumn",  "winter",    "weekend", "holiday",
                                      "season",  "term",      "lunch",   "breakfast", "dinner"};

constexpr std::string_view kHow[] = {"slowly",   "quickly",  "quietly",     "carefully",  "calmly",
                                     "gladly",   "neatly",   "briefly",     "patiently",  "properly",
                                     "politely", "suddenly", "eagerly",     "casually",   "silently",
                                     "gently",   "promptly", "reluctantly", "thoroughly", "successfully"};

constexpr std::string_view kOften[] = {"usually", "often",      "rarely",       "sometimes", "always",
                                       "seldom",  "frequently", "occasionally", "normally",  "generally"};

constexpr std::string_view kTopic[] = {
    "weather",   "traffic",   "rent",      "furniture",   "plumbing",    "music",        "football",
    "history",   "geography", "grammar",   "mathematics", "painting",    "cooking",      "farming",
    "fishing",   "shipping",  "insurance", "politics",    "electricity", "architecture", "transport",
    "education", "medicine",  "gardening", "carpentry",   "theatre",     "literature",   "chemistry",
    "astronomy", "repairs",   "prices",    "wages",       "taxes",       "schedules",    "recipes",
    "holidays",  "lessons",   "elections", "exhibitions", "concerts"};

constexpr std::string_view kNumber[] = {"two",    "three",  "four",  "five",   "six",     "seven",
                                        "eight",  "nine",   "ten",   "eleven", "twelve",  "fifteen",
                                        "twenty", "thirty", "forty", "fifty",  "several", "many"};

constexpr std::string_view kMatter[] = {"bread",  "cheese",  "butter", "soup",  "rice",  "flour", "sugar",
                                        "coffee", "tea",     "milk",   "water", "juice", "paper", "cloth",
                                        "timber", "gravel",  "cement", "glass", "steel", "iron",  "wool",
                                        "cotton", "leather", "paint",  "soap",  "oil",   "coal",  "sand",
                                        "salt",   "pepper",  "honey",  "fruit", "grain"};

constexpr std::string_view kWent[] = {"walked",    "drove", "cycled",  "hurried", "returned", "wandered",
                                      "travelled", "moved", "climbed", "crossed", "strolled", "ran"};

constexpr std::string_view kUnit[] = {"minutes", "hours", "days", "weeks", "months", "years"};

constexpr std::string_view kSky[] = {"rain",    "snow",   "wind",  "fog",  "sunshine",
                                     "thunder", "clouds", "frost", "hail", "drizzle"};

constexpr std::string_view kTemplates[] = {
    "The {mood} {person} {did} the {thing} and then {went} back to the {place}.",
    "One {time} the {person} {did} a {quality} {thing} beside the {place}.",
    "Because of the {sky}, the {people} stayed near the {place} for {number} {unit}.",
    "Nobody at the {place} knew why the {person} {went} there so {how}.",
    "Every {time} the {people} met in the {place} and talked about {topic}.",
    "A {quality} {thing} stood between the {place} and the {place} for {number} {unit}.",
    "After lunch the {people} {how} {did} the {thing} that belonged to the {person}.",
    "The price of {matter} rose again, so the {person} {did} only {number} bags of {matter}.",
    "My {person} {often} says that {topic} and {topic} are easier to learn after {time}.",
    "When the {sky} stopped, {number} {people} {went} past the {quality} {place}.",
    "There was {matter} on the {thing}, and nobody {did} it until {time}.",
    "In the {place} a {mood} {person} explained {topic} to {number} {people}.",
    "The road from the {place} to the {place} was {quality} and closed for {number} {unit}.",
    "Some {people} {often} bring {matter} and {matter} to the {quality} {place}.",
    "She {did} the {quality} {thing} {how} and left it at the {place}.",
    "He {often} reads about {topic} while he waits for the {person} at the {place}.",
    "They {did} {number} boxes of {matter} before the {person} arrived with the {thing}.",
    "It took the {people} {number} {unit} to agree about {topic} and {topic}.",
    "Last {time} the {sky} was so strong that the {quality} {thing} fell over.",
    "Near the {place} there is a {quality} shop that sells {matter}, {matter} and a {thing} or two.",
    "Although the {person} was {mood}, the {people} listened {how} to the talk about {topic}.",
    "The {person} asked the {people} whether the {thing} in the {place} was {quality}.",
    "We {went} to the {place} in {number} {unit} and {did} the {thing} there.",
    "The early train left without the {person}, who {how} {went} home through the {place}.",
    "During the {time} the {place} stays {quality}, and the {people} {often} rest there.",
    "Our {mood} {person} keeps {matter}, a {thing} and a {thing} behind the {place}.",
    "If the {sky} returns before {time}, the {people} will wait inside the {quality} {place}.",
    "The article on {topic} was {quality}, but the {person} {did} it twice.",
    "One of the {people} {how} {did} the {thing} and put it under the {thing}.",
    "For {number} {unit} the {person} and the {people} argued about the {quality} {thing}.",
    "The new rules on {topic} surprised the {people} who {often} work at the {place}.",
    "Without {matter} the {person} could not finish the {quality} {thing} by {time}.",
    "Down by the {place} the {people} {did} {matter} in the {sky} and laughed.",
    "The letter said that the {thing} had been {how} moved from the {place} to the {place}.",
    "As usual, the {person} {went} across the {place} with a {thing} full of {matter}.",
    "Between one {time} and the next the {place} sold {number} pounds of {matter}.",
    "I think the {person} {did} the {thing} because the {place} looked {quality}.",
    "The {people} wanted a {quality} {thing}, yet the {person} only had {matter}.",
    "Later that {time}, {sky} covered the {place} and the {people} {went} home.",
    "Both the {person} and the {person} {often} forget the {thing} at the {place}."};

struct Slot {
  std::string_view name;
  std::span<const std::string_view> words;
};

constexpr Slot kSlots[] = {{"person", kPerson},   {"people", kPeople}, {"did", kDid},     {"thing", kThing},
                           {"quality", kQuality}, {"mood", kMood},     {"place", kPlace}, {"time", kTime},
                           {"how", kHow},         {"often", kOften},   {"topic", kTopic}, {"number", kNumber},
                           {"matter", kMatter},   {"went", kWent},     {"unit", kUnit},   {"sky", kSky}};

}  // namespace

std::span<const std::string_view> key_adjectives() { return kAdjectives; }
std::span<const std::string_view> key_nouns() { return kNouns; }
std::span<const std::string_view> filler_templates() { return kTemplates; }

std::span<const std::string_view> filler_words(std::string_view slot) {
  for (const Slot& s : kSlots)
    if (s.name == slot) return s.words;
  return {};
}

}  // namespace kveval
