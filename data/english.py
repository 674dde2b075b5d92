"""English words whose gender or number is known: first names, nouns for people, and countable nouns with plurals.

Written by hand for this project. A name is listed if it is common in English books or in the birth records of the US
Social Security Administration (ssa.gov/oact/babynames, public domain) and clearly belongs to one gender there; names
for both (Robin, Frances/Francis in old spelling, Evelyn, Kim) and names that are frequent words (Rose, Will, Mark,
Grace, May, Faith, Joy, Hope, Bill, Art) are left out.
"""

FEMININE_NAMES = frozenset(
    """
Abigail Ada Adelaide Agatha Agnes Alexandra Alice Amanda Amelia Amy Ana Andrea Angela Anna Anne Annie Antonia Arabella
Audrey Barbara Beatrice Becky Bella Bertha Bess Bessie Beth Betsy Betty Brenda Bridget Camilla Carla Carmen Carol
Caroline Catherine Cecilia Charlotte Chloe Christina Christine Cindy Clara Clarissa Claudia Constance Cora Cordelia
Cornelia Cynthia Daisy Deborah Della Diana Dolly Dora Doris Dorothea Dorothy Edith Edna Effie Eileen Elaine Eleanor
Elena Eliza Elizabeth Ella Ellen Elsa Elsie Emily Emma Erica Esther Ethel Eugenia Eunice Eva Eveline Fanny Fiona Flora
Gabriella Georgiana Geraldine Gertrude Gladys Gretchen Gretel Gwendolen Hannah Harriet Hazel Heidi Helen Helena
Henrietta Hermione Hester Hilda Ida Inez Irene Isabel Isabella Ivy Jane Janet Jean Jemima Jennie Jennifer Jenny
Jessica Jill Joan Joanna Josephine Judith Judy Julia Julie Juliet June Karen Kate Katherine Kathleen Katie Katy Kitty
Laura Lavinia Leah Lena Leonora Lettice Letty Lila Lilly Lily Linda Lisa Lizzie Lizzy Lola Lorna Louisa Louise Lucia
Lucille Lucinda Lucy Lulu Lydia Mabel Madeline Maggie Mamie Margaret Margery Maria Marian Marianne Marie Marjorie
Martha Mary Matilda Maud Maude Maureen Maya Meg Melissa Mercy Mia Mildred Millie Millicent Milly Minna Minnie Miranda
Miriam Molly Mona Monica Muriel Myra Nadia Nancy Naomi Natalie Nellie Nelly Nettie Nina Nora Olga Olive Olivia Ophelia
Pamela Pauline Peggy Penelope Phoebe Phyllis Polly Priscilla Rachel Rebecca Rhoda Rita Roberta Rosa Rosalie Rosalind
Rosamond Rosemary Rosie Ruth Sadie Sally Samantha Sara Sarah Selina Sheila Sophia Sophie Stella Sue Susan Susanna
Susie Sybil Sylvia Tabitha Tess Tessa Theresa Tilly Trudy Ursula Valentina Vanessa Vera Veronica Viola Wendy
Wilhelmina Winifred Yvonne Zelda Zoe Zoey
""".split()
)
MASCULINE_NAMES = frozenset(
    """
Aaron Abraham Adam Alan Albert Alec Alexander Alfred Algernon Allan Ambrose Amos Andrew Andy Anthony Antonio Archibald
Archie Arnold Arthur Augustus Barnaby Bart Bartholomew Basil Ben Benjamin Bernard Bertie Bertram Bob Bobby Boris Brian
Bruce Caleb Calvin Carl Cecil Cedric Charles Charley Charlie Christopher Clarence Claude Clement Clifford Conrad
Cuthbert Cyril Cyrus Daniel Danny Dave David Dennis Dick Dominic Donald Douglas Duncan Ebenezer Ed Eddie Edgar Edmund
Eduard Edward Edwin Elijah Elliot Emil Enoch Eric Ernest Ethan Eugene Eustace Ezra Felix Ferdinand Francisco Frank
Franklin Fred Freddie Frederick Fritz Gabriel Gareth Geoffrey George Gerald Gilbert Giles Godfrey Gordon Graham Greg
Gregory Gus Guy Hansel Harold Harry Hector Henry Herbert Herman Hiram Horace Howard Hubert Hugh Hugo Humphrey Ian
Ichabod Isaac Ivan Jack Jackson Jacob Jake James Jason Jasper Jeffrey Jeremiah Jeremy Jerome Jerry Jesse Jim Jimmy Joe
Joel Joey John Johnny Jonathan Jose Joseph Joshua Josiah Juan Julian Julius Karl Keith Kenneth Kevin Lancelot Larry
Laurence Lawrence Leo Leon Leonard Leopold Levi Lewis Liam Lionel Lorenzo Louis Lucas Luke Malcolm Manuel Marcus Mario
Marmaduke Martin Matthew Maurice Max Maximilian Melvin Merlin Michael Mick Mike Miles Mortimer Moses Nathan Nathaniel
Ned Neil Nelson Nicholas Nick Noah Norman Oliver Orlando Oscar Oswald Otto Owen Paolo Patrick Paul Pedro Percival
Percy Peter Phil Philip Phineas Pierre Quentin Ralph Ralphie Randolph Raymond Reginald Reuben Rex Richard Rob Robert
Roderick Rodney Roger Roland Ronald Rory Rudolph Rufus Rupert Sam Sammy Samson Samuel Sebastian Seth Sidney Silas
Simon Solomon Spencer Stanley Stephen Steve Steven Stuart Sylvester Ted Teddy Terence Theodore Theophilus Thomas Tim
Timmy Timothy Tobias Toby Tom Tommy Tony Uriah Vernon Victor Vincent Vladimir Wallace Walter Wilbur Wilfred Willie
William Willy Winston Zachary
""".split()
)
# Nouns for people of the other gender; the first of several is the counterpart of the other side.
_NOUN_PAIRS = """
actress actor, aunt uncle, auntie uncle, baroness baron, bride bridegroom, daughter son, duchess duke, empress
emperor, girl boy, grandma grandpa, grandmother grandfather, granddaughter grandson, granny grandpa, heiress heir,
lady gentleman, landlady landlord, lass lad, mama papa, mamma papa, mom dad, mommy daddy, mother father, mum dad,
mummy daddy, niece nephew, nun monk, princess prince, queen king, sister brother, stepmother stepfather, waitress
waiter, widow widower, wife husband, witch wizard, woman man
"""
COUNTERPARTS: dict[str, str] = {}
for _feminine, _masculine in (pair.split() for pair in _NOUN_PAIRS.split(",")):
    COUNTERPARTS.setdefault(_feminine, _masculine)
    COUNTERPARTS.setdefault(_masculine, _feminine)
_PAIRED = _NOUN_PAIRS.replace(",", "").split()
FEMININE_NOUNS = frozenset("countess goddess governess hostess housewife maid maiden mistress nurse".split())
MASCULINE_NOUNS = frozenset(
    "boyfriend fisherman footman hero huntsman knight policeman priest shepherd sultan woodcutter".split()
)
FEMININE_NOUNS |= {*_PAIRED[::2]}
MASCULINE_NOUNS |= {*_PAIRED[1::2]}
_THINGS = """
acorn apple axe bag ball balloon banana barrel basket bean bear beast bed bee bell bench bicycle bird boat bone book
boot bottle bowl box bracelet branch bridge broom bucket bug bush butterfly button cabbage cage cake camel candle cap
car card carriage cart castle cat chain chair cherry chest chicken clock cloud coat coin cookie cottage cow crab crow
crown crystal cup curtain desk diamond dog doll donkey door dragon dress drum duck eagle egg elephant fence flag
flower forest fork fox frog garden gate ghost gift glove goat goose grape gun hammer hat hen hill horse house insect
island jacket jar jewel key kite kitten knife ladder lake lamb lamp lantern leaf lemon letter lion lizard log map
marble mask mirror monkey monster mountain mouse mushroom nail necklace needle nest net nut orange oven owl ox
painting pan parrot peach pear pearl pebble pen pencil picture pie pig pillow pin plane plant plate pocket pond pony
pot potato present puppet puppy purse puzzle rabbit raft rat ribbon ring river road robot rock rocket roof room rope
rose sack saddle sail sandwich scarf seed shadow sheep shell ship shirt shoe shop shovel slipper snail snake sofa
spider spoon squirrel stable star statue stick stone stool stove street swan sword table tail teapot tent thorn tiger
tool tower toy train trap tray treasure tree truck trumpet tunnel turtle umbrella vase village wagon wall watch whale
wheel whistle window wing wolf worm yacht
""".split()
_IRREGULAR = {"goose": "geese", "knife": "knives", "leaf": "leaves", "mouse": "mice", "ox": "oxen", "scarf": "scarves",
              "wolf": "wolves", "potato": "potatoes"}  # fmt: skip


def plural(noun: str) -> str:
    """Return the plural of a countable noun; "sheep" has the same form and is therefore not in SINGULARS."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


SINGULARS = frozenset(_THINGS) - {"sheep", "orange", "present", "watch"}  # the last three are often no nouns for things
PLURALS = {plural(noun): noun for noun in SINGULARS}

# Titles before a surname: "Mrs. Bennet" is one mention.
TITLES = {"Mrs": "feminine", "Miss": "feminine", "Madam": "feminine", "Mr": "masculine", "Master": "masculine",
          "Lady": "feminine", "Lord": "masculine", "Sir": "masculine"}  # fmt: skip
