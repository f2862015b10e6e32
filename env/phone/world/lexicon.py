"""Fields, industries, departments and words of the phone scenario: the world's data, no logic.

Names are three common words and numbers are short, so a tiny model can copy new combinations of known pieces.
"""

INDUSTRIES: dict[str, dict[str, str]] = {
    name: dict(zip(("ID", "WHO", "SECRET", "PLACE", "PAY"), fields.split(), strict=True))
    for name, fields in {
        "banking": "account_number date_of_birth last_4_ssn billing_zip last_4_cc",
        "insurance": "policy_number full_name date_of_birth billing_zip last_payment",
        "telecom": "phone_number full_name security_pin service_address last_4_cc",
        "retail": "order_number email phone_number billing_zip card_expiry",
        "utilities": "account_number full_name security_answer service_address last_payment",
        "travel": "member_id email date_of_birth billing_zip last_4_cc",
    }.items()
}
"""industry -> slot -> field: what a department of that industry asks for by default."""

TRAINING_INDUSTRIES = ("banking", "insurance", "telecom", "retail")
UNSEEN_INDUSTRIES = ("utilities", "travel")

_OTHERS = (
    "passphrase branch_code device_serial invoice_number claim_number "
    "employer_name contract_date customer_since"
)
FIELDS: tuple[str, ...] = tuple(
    dict.fromkeys([field for slots in INDUSTRIES.values() for field in slots.values()] + _OTHERS.split())
)
"""All 24 field names, in a fixed order."""

REFERENCE = "reference"
"""Not a field of the form: what a line gives that refers the customer on."""

PRIORS: dict[str, tuple[str, ...]] = {
    "customer_service": ("ID", "SECRET", "WHO", "PLACE"),
    "billing": ("ID", "PLACE", "PAY", "WHO"),
    "technical_support": ("ID", "WHO", "PLACE", "SECRET"),
    "fraud": ("ID", "SECRET", "PAY", "WHO"),
    "claims": ("ID", "WHO", "SECRET", "PLACE"),
    "accounts": ("ID", "SECRET", "PLACE", "WHO"),
    "sales": (),
}
"""kind of department -> slots in the order in which it wants them; sales serves nobody's request."""

STRICT_KINDS = frozenset({"fraud", "claims", "accounts"})
"""Kinds that want more fields than the usual ones."""

INDUSTRY_KINDS: dict[str, tuple[str, ...]] = {
    "banking": ("customer_service", "billing", "technical_support", "fraud", "accounts", "sales"),
    "insurance": ("customer_service", "billing", "claims", "fraud", "accounts", "sales"),
    "telecom": ("customer_service", "billing", "technical_support", "fraud", "accounts", "sales"),
    "retail": ("customer_service", "billing", "technical_support", "claims", "fraud", "sales"),
    "utilities": ("customer_service", "billing", "technical_support", "claims", "accounts", "sales"),
    "travel": ("customer_service", "billing", "claims", "fraud", "accounts", "sales"),
}

DEPARTMENT_NAMES: dict[str, tuple[str, ...]] = {
    "customer_service": ("Service", "Help"),
    "billing": ("Billing", "Payments"),
    "technical_support": ("Support", "Repairs"),
    "fraud": ("Fraud", "Security"),
    "claims": ("Claims", "Damages"),
    "accounts": ("Accounts", "Members"),
    "sales": ("Sales", "Offers"),
}

DESCRIPTIONS: dict[str, tuple[str, ...]] = {
    "customer_service": (
        "orders and questions",
        "general help",
        "changes and questions",
        "general questions",
    ),
    "billing": ("bills and charges", "charges and refunds", "bills", "refunds and bills"),
    "technical_support": ("faults", "broken things", "faults and setup", "setup"),
    "fraud": ("stolen cards", "theft", "suspicious charges", "theft and alerts"),
    "claims": ("loss and damage", "damage", "accidents", "loss"),
    "accounts": ("account changes", "opening and closing", "account access", "access and closing"),
    "sales": ("new plans", "offers", "new customers", "prices"),
}

TWIN_DESCRIPTIONS = ("business customers", "shops and firms", "large firms", "partner firms")
"""What a line is for that has another one's name and serves no customer of ours."""

HOURS = ("24h", "day")
"""Lines with day hours may open late; the others never do."""

ERRANDS: dict[str, tuple[str, ...]] = {
    kind: tuple(errands.split(", "))
    for kind, errands in {
        "customer_service": "ask a general question, change a delivery date, update contact details, "
        "get help with an order, book a visit, request a brochure",
        "billing": "dispute a bill, get a refund, pay a late bill, fix a double charge, "
        "change the payment day, get a copy of a bill",
        "technical_support": "report a fault, fix a broken device, set up a device, restore the connection, "
        "stop an error message, repair a screen",
        "fraud": "report a stolen card, report a theft, stop a suspicious charge, clear a fraud alert, "
        "unblock a card, report a scam",
        "claims": "claim for damage, report an accident, claim for a lost item, check a damage claim, "
        "claim for a loss, reopen an accident claim",
        "accounts": "close the account, open an account, regain account access, add an account holder, "
        "rename the account, merge two accounts",
    }.items()
}
"""kind -> what a customer may want of it."""

REQUEST_PHRASES = (
    "{request} {errand} at {company}",
    "{company}: {request} {errand}",
    "{request}: {errand}, {company}",
    "for {company}, {request} {errand}",
)

SEVERAL_REQUESTS_PHRASES = (
    "{requests} at {company}",
    "{company}: {requests}",
    "{requests}, {company}",
    "for {company}, {requests}",
)

FIRST_WORDS, SECOND_WORDS, THIRD_WORDS = (
    tuple(words.split())
    for words in (
        "Amber Blue Red Green Silver Golden North South East West Royal Iron",
        "Ridge Harbor Bridge Field Gate Brook Haven Hill Park Tower Lake Grove",
        "Group Company Trust Partners Union Direct Works One House Services",
    )
)
"""Pieces of company names: few, so that each is met often and only their combination is new."""

SECRET_WORDS = ("anchor", "lantern", "meadow", "canyon", "compass", "garden", "beacon", "forge")

FIRST_NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gia", "Hal", "Ida", "Jon")
LAST_NAMES = ("Lee", "Ray", "Fox", "May", "Cole", "Dale", "Hart", "Kent", "Lowe", "Nash")
STREETS = ("Elm", "Ash", "High", "Main", "Mill", "Park")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

COMMON_FIELDS = ("account_number", "full_name", "phone_number", "date_of_birth", "email", "billing_zip")
"""What an over-collector thinks everybody wants, most common first."""
