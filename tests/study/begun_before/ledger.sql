BEGIN TRANSACTION;
CREATE TABLE ablate_lease (
	study_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	revision BIGINT NOT NULL, 
	holder TEXT, 
	host TEXT, 
	place TEXT, 
	pid INTEGER, 
	process_started TEXT, 
	token TEXT NOT NULL, 
	held_since DOUBLE, 
	held_until DOUBLE, 
	lease_seconds DOUBLE DEFAULT '60' NOT NULL, 
	beat BIGINT DEFAULT '0' NOT NULL, 
	active_seconds DOUBLE DEFAULT '0' NOT NULL, 
	PRIMARY KEY (study_id), 
	FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
INSERT INTO "ablate_lease" VALUES(1,1,16,'host (process 1)','host','12b0d695-8cb2-409c-9c71-1fd479b50b41 pid:[4026531836]',11734,'272273','b34cbe3203d74f08a0f93d56ac8fa247',1.79534377967652583121e+09,NULL,60.0,3,1.02087600949998886785e+01);
CREATE TABLE ablate_mlflow_parent (
	study_id INTEGER NOT NULL, 
	dataset TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	PRIMARY KEY (study_id, dataset), 
	FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
CREATE TABLE ablate_note (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	dataset TEXT, 
	payload TEXT NOT NULL, 
	driver_epoch INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
INSERT INTO "ablate_note" VALUES(1,1,'driver_started',NULL,'{"holder":"host (process 1)"}',1,1.79534378516546130185e+09);
CREATE TABLE ablate_report (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	replicate INTEGER NOT NULL, 
	metrics TEXT NOT NULL, 
	diverged INTEGER NOT NULL, 
	final INTEGER NOT NULL, 
	decision TEXT NOT NULL, 
	checkpoint TEXT, 
	wall_seconds DOUBLE NOT NULL, 
	driver_epoch INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT ablate_report_once UNIQUE (trial_id, epoch, replicate), 
	CONSTRAINT ablate_report_decision CHECK (decision IN ('CONTINUE', 'STOP')), 
	FOREIGN KEY(study_id) REFERENCES ablate_study (id), 
	FOREIGN KEY(trial_id) REFERENCES ablate_trial (id)
);
INSERT INTO "ablate_report" VALUES(1,1,1,1,0,'{"train_loss":2.2966171900431314,"train_accuracy":0.14583333333333334,"val_loss":2.298655483457777,"val_accuracy":0.10416666666666667,"learning_rate":0.00409216349306288}',0,0,'CONTINUE','epoch-000001-attempt-001.safetensors',5.44593619997613131999e-02,1,1.79534378867887568472e+09);
INSERT INTO "ablate_report" VALUES(2,1,1,2,0,'{"train_loss":2.273340861002604,"train_accuracy":0.10416666666666667,"val_loss":2.298716503712866,"val_accuracy":0.10416666666666667,"learning_rate":0.00036549730108744014}',0,1,'CONTINUE','epoch-000002-attempt-001.safetensors',1.14350129999820637749e-01,1,1.79534378877286815642e+09);
INSERT INTO "ablate_report" VALUES(3,1,2,1,0,'{"train_loss":2.256584326426188,"train_accuracy":0.203125,"val_loss":2.1981478241205217,"val_accuracy":0.2854,"learning_rate":0.004270576107484729}',0,0,'CONTINUE','epoch-000001-attempt-001.safetensors',2.9389708600001540617e-01,1,1.79534378923767352106e+09);
INSERT INTO "ablate_report" VALUES(4,1,2,2,0,'{"train_loss":2.174925963083903,"train_accuracy":0.3255208333333333,"val_loss":2.167362722364068,"val_accuracy":0.318425,"learning_rate":0.00038143247307206006}',0,1,'CONTINUE','epoch-000002-attempt-001.safetensors',5.94174272000145720085e-01,1,1.79534378957318758963e+09);
INSERT INTO "ablate_report" VALUES(5,1,3,1,0,'{"train_loss":2.2962168057759604,"train_accuracy":0.14583333333333334,"val_loss":2.298561458786329,"val_accuracy":0.09027777777777778,"learning_rate":0.005209381806682355}',0,0,'STOP','epoch-000001-attempt-001.safetensors',5.33586000001378124579e-02,1,1.79534378972983217235e+09);
INSERT INTO "ablate_report" VALUES(6,1,4,1,0,'{"train_loss":2.253131866455078,"train_accuracy":0.2109375,"val_loss":2.189177299812436,"val_accuracy":0.29365,"learning_rate":0.004654027789428792}',0,0,'CONTINUE','epoch-000001-attempt-001.safetensors',2.46853878999900189228e-01,1,1.79534379004549551005e+09);
INSERT INTO "ablate_report" VALUES(7,1,4,2,0,'{"train_loss":2.1642207304636636,"train_accuracy":0.3333333333333333,"val_loss":2.1555489672362804,"val_accuracy":0.330475,"learning_rate":0.0004156809959098158}',0,1,'CONTINUE','epoch-000002-attempt-001.safetensors',4.58990097999958379659e-01,1,1.79534379028889513017e+09);
CREATE TABLE ablate_schema (
	version INTEGER NOT NULL, 
	ledger_id TEXT, 
	PRIMARY KEY (version)
);
INSERT INTO "ablate_schema" VALUES(2,'fe07e2efdb994bf98287378a22318455');
CREATE TABLE ablate_study (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	file TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	store TEXT, 
	tracking TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "ablate_study" VALUES(1,'before','study: before
seed: 5
datasets:
  digits: {patch: 2, train_limit: 60}
  copy: {length: 8, train_limit: 60}
model: {width: 8, depth: 1, mlp: {choices: [none, 8]}, heads: {choices: [1, 2]}}
training: {epochs: 2, batch_size: 16, learning_rate: {float: [1e-3, 1e-2], log: true}}
budget: {trials: 2}
confirm: null
','5eebfdc2c7a38c788831f890c54ba0d4b8a7b02e44453fbf812e8f0c34be905c',5,1.79534377967652583121e+09,'default',NULL);
CREATE TABLE ablate_trial (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	dataset TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	stage TEXT NOT NULL, 
	config TEXT NOT NULL, 
	replicates INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	epochs_done INTEGER NOT NULL, 
	wall_seconds DOUBLE NOT NULL, 
	params BIGINT, 
	params_body BIGINT, 
	flops BIGINT, 
	shape TEXT, 
	sampler_state TEXT NOT NULL, 
	error TEXT, 
	checkpoint TEXT, 
	mlflow_run_id TEXT, 
	driver_epoch INTEGER NOT NULL, 
	revision BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	finished_at DOUBLE, 
	PRIMARY KEY (id), 
	CONSTRAINT ablate_trial_number UNIQUE (study_id, dataset, number), 
	CONSTRAINT ablate_trial_number_positive CHECK (number >= 0), 
	CONSTRAINT ablate_trial_state CHECK (state IN ('WAITING', 'RUNNING', 'COMPLETE', 'PRUNED', 'FAIL')), 
	CONSTRAINT ablate_trial_stage CHECK (stage IN ('search', 'confirm')), 
	FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
INSERT INTO "ablate_trial" VALUES(1,1,'digits',0,'search','{"key":{"study":"before","dataset":"digits","number":0},"stage":"search","model":{"builder":"transformer","width":8,"depth":1,"heads":2,"mlp":0,"mlp_ratio":null,"similarity":"separate","value":"separate","pair_position":0,"diagonal":"plain","bias":"all","position":"sinusoidal","pool":"mean","norm":"pre","residual":true,"dropout":0.0,"options":{}},"task":{"task":"digits","patch":[2,2],"image_size":null,"validation":0.1,"train_limit":60,"length":null,"share":1.0,"path":null,"options":{}},"train":{"epochs":2,"batch_size":16,"optimizer":"adamw","learning_rate":0.005456217990750507,"weight_decay":0.01,"beta1":0.9,"beta2":0.999,"epsilon":1e-08,"momentum":0.9,"schedule":{"name":"cosine","warmup_epochs":0.0,"warmup_steps":0,"milestones":[0.5,0.75],"gamma":0.1,"floor":0.0},"clip_norm":null,"label_smoothing":0.0,"precision":"float32","report_every":1,"steps_per_epoch":null},"seeds":[0],"study_seed":5,"protocol":"held_out","parameters":{"model.heads":2,"model.mlp":"none","training.learning_rate":0.005456217990750507},"variant":null,"source":null,"evaluates":null}',1,'COMPLETE',1,2,1.14350129999820637749e-01,450,320,17568,'{"tokens":16,"features":4,"outputs":10,"train_samples":1438,"inputs":"vectors","output":"sample","causal":false,"source_tokens":0,"source_features":0,"pad":null,"ships_validation":false,"window":0}','{"trial":{},"study":{},"attempts":1}',NULL,'epoch-000002-attempt-001.safetensors',NULL,1,5,1.79534378516648888586e+09,1.79534378520052170756e+09,1.79534378877286815642e+09);
INSERT INTO "ablate_trial" VALUES(2,1,'copy',0,'search','{"key":{"study":"before","dataset":"copy","number":0},"stage":"search","model":{"builder":"transformer","width":8,"depth":1,"heads":1,"mlp":0,"mlp_ratio":null,"similarity":"separate","value":"separate","pair_position":0,"diagonal":"plain","bias":"all","position":"sinusoidal","pool":"mean","norm":"pre","residual":true,"dropout":0.0,"options":{}},"task":{"task":"copy","patch":[4,4],"image_size":null,"validation":0.1,"train_limit":60,"length":8,"share":1.0,"path":null,"options":{}},"train":{"epochs":2,"batch_size":16,"optimizer":"adamw","learning_rate":0.005694101476646306,"weight_decay":0.01,"beta1":0.9,"beta2":0.999,"epsilon":1e-08,"momentum":0.9,"schedule":{"name":"cosine","warmup_epochs":0.0,"warmup_steps":0,"milestones":[0.5,0.75],"gamma":0.1,"floor":0.0},"clip_norm":null,"label_smoothing":0.0,"precision":"float32","report_every":1,"steps_per_epoch":null},"seeds":[0],"study_seed":5,"protocol":"held_out","parameters":{"model.heads":1,"model.mlp":"none","training.learning_rate":0.005694101476646306},"variant":null,"source":null,"evaluates":null}',1,'COMPLETE',1,2,5.94174272000145720085e-01,498,320,7424,'{"tokens":8,"features":10,"outputs":10,"train_samples":50000,"inputs":"ids","output":"token","causal":false,"source_tokens":0,"source_features":0,"pad":null,"ships_validation":false,"window":0}','{"trial":{},"study":{},"attempts":1}',NULL,'epoch-000002-attempt-001.safetensors',NULL,1,9,1.79534378887153816227e+09,1.79534378887325739857e+09,1.79534378957318758963e+09);
INSERT INTO "ablate_trial" VALUES(3,1,'digits',1,'search','{"key":{"study":"before","dataset":"digits","number":1},"stage":"search","model":{"builder":"transformer","width":8,"depth":1,"heads":2,"mlp":0,"mlp_ratio":null,"similarity":"separate","value":"separate","pair_position":0,"diagonal":"plain","bias":"all","position":"sinusoidal","pool":"mean","norm":"pre","residual":true,"dropout":0.0,"options":{}},"task":{"task":"digits","patch":[2,2],"image_size":null,"validation":0.1,"train_limit":60,"length":null,"share":1.0,"path":null,"options":{}},"train":{"epochs":2,"batch_size":16,"optimizer":"adamw","learning_rate":0.006945842408909807,"weight_decay":0.01,"beta1":0.9,"beta2":0.999,"epsilon":1e-08,"momentum":0.9,"schedule":{"name":"cosine","warmup_epochs":0.0,"warmup_steps":0,"milestones":[0.5,0.75],"gamma":0.1,"floor":0.0},"clip_norm":null,"label_smoothing":0.0,"precision":"float32","report_every":1,"steps_per_epoch":null},"seeds":[0],"study_seed":5,"protocol":"held_out","parameters":{"model.heads":2,"model.mlp":"none","training.learning_rate":0.006945842408909807},"variant":null,"source":null,"evaluates":null}',1,'PRUNED',1,1,5.33586000001378124579e-02,450,320,17568,'{"tokens":16,"features":4,"outputs":10,"train_samples":1438,"inputs":"vectors","output":"sample","causal":false,"source_tokens":0,"source_features":0,"pad":null,"ships_validation":false,"window":0}','{"trial":{},"study":{},"attempts":1}',NULL,'epoch-000001-attempt-001.safetensors',NULL,1,12,1.79534378957565903664e+09,1.79534378959365463254e+09,1.79534378972983217235e+09);
INSERT INTO "ablate_trial" VALUES(4,1,'copy',1,'search','{"key":{"study":"before","dataset":"copy","number":1},"stage":"search","model":{"builder":"transformer","width":8,"depth":1,"heads":1,"mlp":0,"mlp_ratio":null,"similarity":"separate","value":"separate","pair_position":0,"diagonal":"plain","bias":"all","position":"sinusoidal","pool":"mean","norm":"pre","residual":true,"dropout":0.0,"options":{}},"task":{"task":"copy","patch":[4,4],"image_size":null,"validation":0.1,"train_limit":60,"length":8,"share":1.0,"path":null,"options":{}},"train":{"epochs":2,"batch_size":16,"optimizer":"adamw","learning_rate":0.006205370385905056,"weight_decay":0.01,"beta1":0.9,"beta2":0.999,"epsilon":1e-08,"momentum":0.9,"schedule":{"name":"cosine","warmup_epochs":0.0,"warmup_steps":0,"milestones":[0.5,0.75],"gamma":0.1,"floor":0.0},"clip_norm":null,"label_smoothing":0.0,"precision":"float32","report_every":1,"steps_per_epoch":null},"seeds":[0],"study_seed":5,"protocol":"held_out","parameters":{"model.heads":1,"model.mlp":"none","training.learning_rate":0.006205370385905056},"variant":null,"source":null,"evaluates":null}',1,'COMPLETE',1,2,4.58990097999958379659e-01,498,320,7424,'{"tokens":8,"features":10,"outputs":10,"train_samples":50000,"inputs":"ids","output":"token","causal":false,"source_tokens":0,"source_features":0,"pad":null,"ships_validation":false,"window":0}','{"trial":{},"study":{},"attempts":1}',NULL,'epoch-000002-attempt-001.safetensors',NULL,1,16,1.7953437897402105332e+09,1.79534378974577069282e+09,1.79534379028889513017e+09);
CREATE INDEX ablate_trial_revision ON ablate_trial (study_id, revision);
CREATE INDEX ix_ablate_note_study_id ON ablate_note (study_id);
CREATE INDEX ablate_report_cursor ON ablate_report (study_id, id);
COMMIT;
