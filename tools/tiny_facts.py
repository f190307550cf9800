"""Tables behind the training text of nibble-tiny: countries, simple facts, names, places."""

# country | capital | continent | language (blank where a one-word answer would mislead)
_COUNTRIES = """
Afghanistan|Kabul|Asia|
Albania|Tirana|Europe|Albanian
Algeria|Algiers|Africa|Arabic
Angola|Luanda|Africa|Portuguese
Argentina|Buenos Aires|South America|Spanish
Armenia|Yerevan|Asia|Armenian
Australia|Canberra|Oceania|English
Austria|Vienna|Europe|German
Azerbaijan|Baku|Asia|
Bahrain|Manama|Asia|Arabic
Bangladesh|Dhaka|Asia|Bengali
Belarus|Minsk|Europe|
Belgium|Brussels|Europe|
Belize|Belmopan|North America|English
Benin|Porto-Novo|Africa|French
Bhutan|Thimphu|Asia|
Botswana|Gaborone|Africa|
Brazil|Brasilia|South America|Portuguese
Bulgaria|Sofia|Europe|Bulgarian
Cambodia|Phnom Penh|Asia|Khmer
Cameroon|Yaounde|Africa|
Canada|Ottawa|North America|
Chad|N'Djamena|Africa|
Chile|Santiago|South America|Spanish
China|Beijing|Asia|Chinese
Colombia|Bogota|South America|Spanish
Costa Rica|San Jose|North America|Spanish
Croatia|Zagreb|Europe|Croatian
Cuba|Havana|North America|Spanish
Cyprus|Nicosia|Europe|
the Czech Republic|Prague|Europe|Czech
Denmark|Copenhagen|Europe|Danish
Ecuador|Quito|South America|Spanish
Egypt|Cairo|Africa|Arabic
El Salvador|San Salvador|North America|Spanish
Eritrea|Asmara|Africa|
Estonia|Tallinn|Europe|Estonian
Ethiopia|Addis Ababa|Africa|
Fiji|Suva|Oceania|
Finland|Helsinki|Europe|
France|Paris|Europe|French
Gabon|Libreville|Africa|French
Georgia|Tbilisi|Asia|Georgian
Germany|Berlin|Europe|German
Ghana|Accra|Africa|English
Greece|Athens|Europe|Greek
Guatemala|Guatemala City|North America|Spanish
Guinea|Conakry|Africa|French
Guyana|Georgetown|South America|English
Haiti|Port-au-Prince|North America|
Honduras|Tegucigalpa|North America|Spanish
Hungary|Budapest|Europe|Hungarian
Iceland|Reykjavik|Europe|Icelandic
India|New Delhi|Asia|
Indonesia|Jakarta|Asia|Indonesian
Iran|Tehran|Asia|Persian
Iraq|Baghdad|Asia|
Ireland|Dublin|Europe|
Italy|Rome|Europe|Italian
Jamaica|Kingston|North America|English
Japan|Tokyo|Asia|Japanese
Jordan|Amman|Asia|Arabic
Kazakhstan|Astana|Asia|
Kenya|Nairobi|Africa|
Kuwait|Kuwait City|Asia|Arabic
Laos|Vientiane|Asia|Lao
Latvia|Riga|Europe|Latvian
Lebanon|Beirut|Asia|Arabic
Liberia|Monrovia|Africa|English
Libya|Tripoli|Africa|Arabic
Lithuania|Vilnius|Europe|Lithuanian
Luxembourg|Luxembourg|Europe|
Madagascar|Antananarivo|Africa|
Malawi|Lilongwe|Africa|
Malaysia|Kuala Lumpur|Asia|Malay
Mali|Bamako|Africa|
Malta|Valletta|Europe|
Mexico|Mexico City|North America|Spanish
Moldova|Chisinau|Europe|
Mongolia|Ulaanbaatar|Asia|Mongolian
Morocco|Rabat|Africa|Arabic
Mozambique|Maputo|Africa|Portuguese
Myanmar|Naypyidaw|Asia|Burmese
Namibia|Windhoek|Africa|English
Nepal|Kathmandu|Asia|Nepali
the Netherlands|Amsterdam|Europe|Dutch
New Zealand|Wellington|Oceania|
Nicaragua|Managua|North America|Spanish
Niger|Niamey|Africa|
Nigeria|Abuja|Africa|English
North Korea|Pyongyang|Asia|Korean
Norway|Oslo|Europe|Norwegian
Oman|Muscat|Asia|Arabic
Pakistan|Islamabad|Asia|
Panama|Panama City|North America|Spanish
Paraguay|Asuncion|South America|
Peru|Lima|South America|Spanish
the Philippines|Manila|Asia|
Poland|Warsaw|Europe|Polish
Portugal|Lisbon|Europe|Portuguese
Qatar|Doha|Asia|Arabic
Romania|Bucharest|Europe|Romanian
Russia|Moscow|Europe|Russian
Rwanda|Kigali|Africa|
Saudi Arabia|Riyadh|Asia|Arabic
Senegal|Dakar|Africa|French
Serbia|Belgrade|Europe|Serbian
Singapore|Singapore|Asia|
Slovakia|Bratislava|Europe|Slovak
Slovenia|Ljubljana|Europe|Slovene
Somalia|Mogadishu|Africa|
South Korea|Seoul|Asia|Korean
Spain|Madrid|Europe|Spanish
Sudan|Khartoum|Africa|
Sweden|Stockholm|Europe|Swedish
Switzerland|Bern|Europe|
Syria|Damascus|Asia|Arabic
Taiwan|Taipei|Asia|Chinese
Tanzania|Dodoma|Africa|
Thailand|Bangkok|Asia|Thai
Tunisia|Tunis|Africa|Arabic
Turkey|Ankara|Asia|Turkish
Uganda|Kampala|Africa|
Ukraine|Kyiv|Europe|Ukrainian
the United Arab Emirates|Abu Dhabi|Asia|Arabic
the United Kingdom|London|Europe|English
the United States|Washington, D.C.|North America|English
Uruguay|Montevideo|South America|Spanish
Uzbekistan|Tashkent|Asia|
Venezuela|Caracas|South America|Spanish
Vietnam|Hanoi|Asia|Vietnamese
Yemen|Sanaa|Asia|Arabic
Zambia|Lusaka|Africa|English
Zimbabwe|Harare|Africa|
"""
COUNTRIES = [tuple(line.split("|")) for line in _COUNTRIES.strip().splitlines()]

# question | full answer | short answer
_FACTS = """
What color is the sky?|The sky is blue.|blue
What color is grass?|Grass is green.|green
What color is snow?|Snow is white.|white
What color is a banana?|A banana is yellow.|yellow
What color is coal?|Coal is black.|black
What color is blood?|Blood is red.|red
What color do you get when you mix blue and yellow?|Blue and yellow make green.|green
What color do you get when you mix red and yellow?|Red and yellow make orange.|orange
What color do you get when you mix red and blue?|Red and blue make purple.|purple
How many days are in a week?|There are seven days in a week.|seven
How many months are in a year?|There are twelve months in a year.|twelve
How many days are in a year?|There are 365 days in a year.|365
How many hours are in a day?|There are 24 hours in a day.|24
How many minutes are in an hour?|There are 60 minutes in an hour.|60
How many seconds are in a minute?|There are 60 seconds in a minute.|60
How many seasons are there?|There are four seasons.|four
How many legs does a dog have?|A dog has four legs.|four
How many legs does a spider have?|A spider has eight legs.|eight
How many legs does an insect have?|An insect has six legs.|six
How many legs does a bird have?|A bird has two legs.|two
How many arms does an octopus have?|An octopus has eight arms.|eight
How many sides does a triangle have?|A triangle has three sides.|three
How many sides does a square have?|A square has four sides.|four
How many sides does a hexagon have?|A hexagon has six sides.|six
How many planets are in the solar system?|There are eight planets in the solar system.|eight
How many continents are there?|There are seven continents.|seven
How many letters are in the alphabet?|There are 26 letters in the English alphabet.|26
How many fingers does a hand have?|A hand has five fingers.|five
How many wheels does a bicycle have?|A bicycle has two wheels.|two
How many wheels does a car have?|A car has four wheels.|four
How many colors are in a rainbow?|There are seven colors in a rainbow.|seven
How many strings does a violin have?|A violin has four strings.|four
What is the largest planet?|The largest planet is Jupiter.|Jupiter
What is the smallest planet?|The smallest planet is Mercury.|Mercury
What is the closest planet to the Sun?|The closest planet to the Sun is Mercury.|Mercury
Which planet is known as the red planet?|Mars is known as the red planet.|Mars
Which planet has the most famous rings?|Saturn has the most famous rings.|Saturn
What planet do we live on?|We live on the planet Earth.|Earth
What is the largest ocean?|The largest ocean is the Pacific Ocean.|the Pacific Ocean
What is the longest river in the world?|The longest river in the world is the Nile.|the Nile
What is the tallest mountain in the world?|The tallest mountain in the world is Mount Everest.|Mount Everest
What is the largest animal?|The largest animal is the blue whale.|the blue whale
What is the largest land animal?|The largest land animal is the elephant.|the elephant
What is the fastest land animal?|The fastest land animal is the cheetah.|the cheetah
What is the tallest animal?|The tallest animal is the giraffe.|the giraffe
What is the largest country?|The largest country is Russia.|Russia
What is the largest continent?|The largest continent is Asia.|Asia
What is the largest desert in Africa?|The largest desert in Africa is the Sahara.|the Sahara
What is the chemical symbol for gold?|The chemical symbol for gold is Au.|Au
What is the chemical symbol for silver?|The chemical symbol for silver is Ag.|Ag
What is the chemical symbol for iron?|The chemical symbol for iron is Fe.|Fe
What is the chemical symbol for oxygen?|The chemical symbol for oxygen is O.|O
What is the chemical symbol for water?|The chemical formula for water is H2O.|H2O
What is ice made of?|Ice is made of frozen water.|water
At what temperature does water boil?|Water boils at 100 degrees Celsius.|100 degrees Celsius
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.|0 degrees Celsius
What gas do we breathe in to live?|We breathe in oxygen to live.|oxygen
What do bees make?|Bees make honey.|honey
What do cows drink?|Cows drink water.|water
What do cows give us?|Cows give us milk.|milk
What do hens lay?|Hens lay eggs.|eggs
What do caterpillars turn into?|Caterpillars turn into butterflies.|butterflies
What does a dog say?|A dog says woof.|woof
What does a cat say?|A cat says meow.|meow
What does a cow say?|A cow says moo.|moo
What does a duck say?|A duck says quack.|quack
What is a baby dog called?|A baby dog is called a puppy.|a puppy
What is a baby cat called?|A baby cat is called a kitten.|a kitten
What is a baby cow called?|A baby cow is called a calf.|a calf
What is a baby sheep called?|A baby sheep is called a lamb.|a lamb
What is the opposite of hot?|The opposite of hot is cold.|cold
What is the opposite of big?|The opposite of big is small.|small
What is the opposite of up?|The opposite of up is down.|down
What is the opposite of fast?|The opposite of fast is slow.|slow
What is the opposite of happy?|The opposite of happy is sad.|sad
What is the opposite of day?|The opposite of day is night.|night
What is the opposite of old?|The opposite of old is young.|young
What is the opposite of open?|The opposite of open is closed.|closed
What is the opposite of left?|The opposite of left is right.|right
What is the opposite of light?|The opposite of light is dark.|dark
What day comes after Monday?|Tuesday comes after Monday.|Tuesday
What day comes after Tuesday?|Wednesday comes after Tuesday.|Wednesday
What day comes after Friday?|Saturday comes after Friday.|Saturday
What day comes after Sunday?|Monday comes after Sunday.|Monday
What month comes after January?|February comes after January.|February
What month comes after June?|July comes after June.|July
What is the first month of the year?|The first month of the year is January.|January
What is the last month of the year?|The last month of the year is December.|December
Who wrote Hamlet?|William Shakespeare wrote Hamlet.|William Shakespeare
Who wrote Romeo and Juliet?|William Shakespeare wrote Romeo and Juliet.|William Shakespeare
Who wrote Pride and Prejudice?|Jane Austen wrote Pride and Prejudice.|Jane Austen
Who wrote Moby Dick?|Herman Melville wrote Moby Dick.|Herman Melville
Who painted the Mona Lisa?|Leonardo da Vinci painted the Mona Lisa.|Leonardo da Vinci
Who was the first person on the Moon?|Neil Armstrong was the first person on the Moon.|Neil Armstrong
Who was the first president of the United States?|George Washington was the first president of the United States.|George Washington
Who discovered gravity?|Isaac Newton described gravity.|Isaac Newton
Where is the Eiffel Tower?|The Eiffel Tower is in Paris.|Paris
Where is Big Ben?|Big Ben is in London.|London
Where is the Colosseum?|The Colosseum is in Rome.|Rome
Where is the Great Wall?|The Great Wall is in China.|China
Where is the Statue of Liberty?|The Statue of Liberty is in New York.|New York
Where do fish live?|Fish live in water.|water
When does the sun rise?|The sun rises in the morning.|in the morning
Where does the sun rise?|The sun rises in the east.|in the east
Where does the sun set?|The sun sets in the west.|in the west
What do plants need to grow?|Plants need water and sunlight to grow.|water and sunlight
What do we use to see?|We use our eyes to see.|our eyes
What do we use to hear?|We use our ears to hear.|our ears
What is the currency of Japan?|The currency of Japan is the yen.|the yen
What is the currency of the United States?|The currency of the United States is the dollar.|the dollar
What is the currency of the United Kingdom?|The currency of the United Kingdom is the pound.|the pound
What is the currency of India?|The currency of India is the rupee.|the rupee
What is the currency of France?|The currency of France is the euro.|the euro
What is the boiling point of water?|The boiling point of water is 100 degrees Celsius.|100 degrees Celsius
How many states does the United States have?|The United States has 50 states.|50
"""
FACTS = [tuple(line.split("|")) for line in _FACTS.strip().splitlines()]

CITIES = """New York|Los Angeles|San Francisco|Chicago|Boston|Seattle|Miami|Dallas|Denver|Houston|Austin|Atlanta|Toronto|Montreal|
Vancouver|Sydney|Melbourne|Perth|Brisbane|Auckland|Munich|Hamburg|Cologne|Frankfurt|Stuttgart|Zurich|Geneva|Basel|Milan|Naples|Turin|
Florence|Venice|Barcelona|Seville|Valencia|Bilbao|Porto|Lyon|Marseille|Nice|Bordeaux|Toulouse|Strasbourg|Manchester|Liverpool|Leeds|
Glasgow|Edinburgh|Cardiff|Belfast|Bristol|Oxford|Cambridge|Cork|Galway|Bergen|Stavanger|Gothenburg|Malmo|Aarhus|Odense|Turku|Tampere|
Krakow|Wroclaw|Brno|Graz|Salzburg|Split|Varna|Cluj|Odesa|Lviv|Kazan|Sochi|Istanbul|Izmir|Antalya|Dubai|Sharjah|Jeddah|Mecca|Haifa|
Jerusalem|Tel Aviv|Alexandria|Casablanca|Marrakesh|Fez|Lagos|Ibadan|Kumasi|Mombasa|Durban|Cape Town|Johannesburg|Pretoria|Mumbai|
Bangalore|Chennai|Kolkata|Hyderabad|Pune|Jaipur|Karachi|Lahore|Colombo|Chittagong|Yangon|Ho Chi Minh City|Da Nang|Chiang Mai|Phuket|
Penang|Surabaya|Bali|Cebu|Davao|Shanghai|Shenzhen|Guangzhou|Chengdu|Wuhan|Xian|Hong Kong|Macau|Osaka|Kyoto|Nagoya|Sapporo|Fukuoka|
Hiroshima|Kobe|Incheon|Daegu|Vladivostok|Honolulu|Anchorage|Portland|Phoenix|Las Vegas|San Diego|San Jose|Salt Lake City|Detroit|
Cleveland|Nashville|Memphis|New Orleans|Orlando|Tampa|Philadelphia|Baltimore|Pittsburgh|Calgary|Edmonton|Winnipeg|Quebec City|
Guadalajara|Monterrey|Cancun|Medellin|Cali|Guayaquil|Arequipa|Rio de Janeiro|Sao Paulo|Salvador|Recife|Fortaleza|Cordoba|Rosario|
Mendoza|Valparaiso|Antwerp|Ghent|Bruges|Rotterdam|Utrecht|Eindhoven|Leipzig|Dresden|Nuremberg|Bremen|Hanover""".replace("\n", "").split("|")

# Never appear in training text: they show that arguments are copied, not recalled.
HELD_OUT_CITIES = ["Trondheim", "Busan", "Cusco", "Gdansk", "Halifax", "Nagasaki", "Brindlemoor", "Tarvosk", "Zanzibar"]

GIRLS = "Lily Anna Mia Lucy Sue Sara Emma Zoe Amy Ella Rose Kate Nina Molly Jane Daisy Grace Ruby Clara Ivy Eva Nora Alice Leah Bella".split()
BOYS = "Tom Ben Tim Max Sam Jack Bob Leo Joe Dan Billy Mark Finn Adam Luke Owen Noah Peter Henry Toby Oscar Felix Hugo Paul Fred".split()
SURNAMES = "Smith Brown Jones Miller Davis Wilson Moore Clark Lewis Walker Hall Young King Wright Green Baker Carter Turner Parker Cook".split()
ANIMALS = "cat dog rabbit bear fox bird mouse duck frog horse lion tiger owl turtle monkey pig sheep cow elephant squirrel".split()
COLORS = "red blue green yellow orange purple pink brown black white gray".split()
FOODS = "apples bananas bread cheese milk eggs rice pasta carrots tomatoes potatoes onions butter sugar coffee tea oranges grapes honey fish".split()
JOBS = "teacher doctor baker farmer pilot nurse painter writer singer driver lawyer engineer cook gardener builder".split()
THINGS = "ball book kite boat car doll hat box lamp cup clock chair bike key map bell drum coat shoe tree".split()
